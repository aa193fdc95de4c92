"""Loss curves: what is a difference, what is none, and what cannot be told."""

import json
import math
import random
from collections.abc import Sequence

import pytest

from autotune.core.loss_curves import Curve, Numerics
from autotune.core.note import Note, NoteKind


def learning(
    pace: float = 1.0, rounds: Sequence[int] = (1, 2, 3), noise: float = 0.0, steps: int = 14
) -> dict[int, Curve]:
    """Curves that fall from about 9 by `pace` hundredths a step; each round begins elsewhere, the same for all."""
    chance = random.Random(f"{pace} {noise}")
    return {
        number: Curve(tuple(9 + 0.3 * number - 0.01 * pace * step + chance.gauss(0, noise) for step in range(steps)))
        for number in rounds
    }


def compared(curves: dict[int, Curve], reference: dict[int, Curve] | None = None) -> Numerics:
    return Numerics(reference or learning(), {1: curves})


@pytest.mark.parametrize("rounds", [(1,), (2,), (1, 2, 3)])
@pytest.mark.parametrize(
    ("pace", "is_flagged"), [(1.0, False), (0.95, False), (1.5, False), (0.8, True), (0.0, True), (5.0, True)]
)
def test_who_learns_much_less_or_more_is_flagged_after_one_round(
    rounds: Sequence[int], pace: float, is_flagged: bool
) -> None:
    numerics = compared(learning(pace, rounds))
    assert bool(numerics.flag(1)) == is_flagged
    assert numerics.is_checked(1)
    difference = numerics.difference(1)
    assert difference is not None
    assert difference.rounds == len(rounds)
    assert difference.loss == pytest.approx(0.01 * (1 - pace) * 10, abs=1e-9)
    assert difference.learned == pytest.approx(0.1)
    assert difference.is_sensitive or is_flagged


def test_noise_is_no_difference_and_hides_one() -> None:
    numerics = compared(learning(1.0, noise=0.2))
    assert not numerics.flag(1)
    difference = numerics.difference(1)
    assert difference is not None
    assert not difference.is_sensitive
    assert not compared(learning(0.0, noise=0.5)).flag(1)
    many = [compared(learning(1.0 + place / 1e6, noise=0.05)).flag(1) for place in range(100)]
    assert sum(map(bool, many)) <= 5


def test_where_the_reference_learns_nothing_nobody_is_flagged_for_that_and_it_cannot_be_told() -> None:
    numerics = compared(learning(0.0), learning(0.0))
    assert not numerics.flag(1)
    difference = numerics.difference(1)
    assert difference is not None
    assert not difference.is_sensitive


def test_a_loss_that_is_not_finite_is_flagged_with_its_step() -> None:
    curves = {1: Curve((9.0, 8.9, math.nan))}
    assert compared(curves).flag(1) == "the loss became nan in step 3"
    assert compared(curves).is_checked(1)


def test_what_shares_no_round_or_too_few_steps_is_not_compared() -> None:
    for curves in ({}, learning(rounds=(7,)), learning(steps=3)):
        numerics = compared(curves)
        assert not numerics.is_checked(1)
        assert not numerics.flag(1)
        assert "no round" in numerics.why_unchecked(1)
    notes = (Note(NoteKind.BASELINE_FAILS), Note(NoteKind.LOSSES_NEED_TIME, detail="fp32"))
    assert Numerics(notes=notes).why_unchecked(1) == "your own settings do not run here, and fp32 takes too long"


def test_curves_of_unequal_length_are_compared_over_the_steps_they_share() -> None:
    difference = compared(learning(steps=30), learning(steps=10)).difference(1)
    assert difference is not None
    assert difference.steps == 10
    assert difference.loss == pytest.approx(0.0)


def test_they_are_written_and_read_again() -> None:
    notes = (Note(NoteKind.LOSSES_NEED_MEMORY, detail="fp32"),)
    numerics = Numerics(learning(), {1: {1: Curve((1.0, math.inf, math.nan))}}, "the baseline", notes=notes)
    again = Numerics.from_dict(json.loads(json.dumps(numerics.to_dict())))
    assert again.references == numerics.references
    assert repr(again) == repr(numerics)
