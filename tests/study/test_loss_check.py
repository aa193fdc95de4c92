"""Comparison of losses: with what, in which measure, and who is barred by it."""

from dataclasses import replace

import pytest

from autotune.core import Configuration, Outcome, Trial
from autotune.core.loss_curves import Curve, Numerics
from autotune.core.note import Note, NoteKind
from autotune.study.loss_check import compare_losses, disqualify_flagged
from tests.makers import completed, configuration, ended, standing_of
from tests.makers import trial as made

FALLING = tuple(9 - 0.05 * step for step in range(12))
FLAT = (9.0,) * 12


def ran(
    number: int, losses: tuple[float, ...], of: Configuration | None = None, rounds: tuple[int, ...] = (1, 2)
) -> Trial:
    of = of or configuration()
    confirmations = [replace(completed(of), losses=losses, round=round_number) for round_number in rounds]
    return replace(made(number, of=of), confirmations=tuple(confirmations))


def trained(trial: Trial, precision: str) -> Trial:
    return replace(trial, measurement=replace(trial.measurement, settings={"precision": precision}))


def test_a_baseline_in_16_bits_is_compared_with_itself_in_fp32_too() -> None:
    own = configuration(precision="bf16")
    trials = [trained(ran(0, FLAT, own), "bf16"), ran(1, FALLING, configuration(16))]
    numerics = compare_losses(standing_of(trials), {1: replace(completed(own), losses=FALLING, round=1)})
    assert numerics is not None
    assert (bool(numerics.flag(0)), bool(numerics.flag(1))) == (True, False)


def test_where_fp32_does_not_fit_the_baseline_takes_its_place_and_without_either_nothing_is_compared() -> None:
    trials = [ran(0, FALLING), ran(1, FLAT)]
    numerics = compare_losses(standing_of(trials), {1: ended(Outcome.OUT_OF_MEMORY)})
    assert numerics is not None
    assert (numerics.reference, *numerics.notes) == ("the baseline", Note(NoteKind.LOSSES_NEED_MEMORY, detail="fp32"))
    assert numerics.flag(1)
    assert compare_losses(standing_of([made(0)]), {}) is None


def test_without_the_baseline_and_anything_more_exact_that_fits_nothing_is_compared_and_it_is_told_why() -> None:
    trials = [Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY)), ran(1, FLAT, configuration(8, precision="bf16"))]
    problems = {}
    for what, known in {
        "time": {},
        "memory": {1: ended(Outcome.OUT_OF_MEMORY, asked={"precision": "tf32"})},
        "deadline": {1: ended(Outcome.TIMED_OUT)},
    }.items():
        numerics = compare_losses(standing_of(trials), known)
        assert numerics is not None
        problems[what] = numerics.problem.removeprefix("your own settings do not run here, and ")
        assert barred(list(trials), numerics) == ["", ""]
        assert "were not compared" in barred(list(trials), numerics, require_parity=True)[1]
    assert problems == {
        "time": "there was no time to train in fp32",
        "memory": "TF32 needs too much memory",
        "deadline": "fp32 takes too long",
    }


def test_rounds_of_composed_steps_which_train_other_samples_are_no_part_of_the_comparison() -> None:
    of = configuration(8)
    composed = {"losses": FLAT, "accumulation_steps_run": 3}
    trials = [ran(0, FALLING, of), ran(1, FALLING, of)]
    for trial in trials:
        assert [each.is_composed for each in trial.confirmations] == [False, False]
    trials = [
        replace(trial, confirmations=(trial.confirmations[0], replace(trial.confirmations[1], **composed)))
        for trial in trials
    ]
    numerics = compare_losses(standing_of(trials), {})
    assert numerics is not None
    assert [*numerics.references] == [*numerics.curves[1]] == [1]
    assert not numerics.flag(1)


@pytest.mark.parametrize("adds_up", [True, False])
def test_losses_that_the_trainer_adds_up_over_micro_steps_are_averaged(adds_up: bool) -> None:
    four, one = configuration(12), configuration(48)
    added = tuple(4 * loss for loss in FALLING) if adds_up else FALLING
    numerics = compare_losses(standing_of([ran(0, added, four), ran(1, FALLING, one)]), {})
    assert numerics is not None
    assert numerics.notes == (Note(NoteKind.LOSSES_ADDED_UP),) * adds_up
    assert not numerics.flag(1)
    difference = numerics.difference(1)
    assert difference is not None
    assert difference.loss == pytest.approx(0)


def barred(trials: list[Trial], numerics: Numerics, require_parity: bool = False) -> list[str]:
    disqualify_flagged(trials, numerics, require_parity)
    return [trial.disqualified_reason for trial in trials]


def test_what_is_flagged_is_barred_and_what_learns_as_it_does_but_never_the_baseline() -> None:
    bf16 = [configuration(size, precision="bf16") for size in (8, 16)]
    trials = [ran(0, FALLING), ran(1, FLAT, bf16[0]), made(2, of=bf16[1]), made(3, of=configuration(16))]
    numerics = compare_losses(standing_of(trials), {})
    assert numerics is not None
    reasons = barred(trials, numerics)
    assert (reasons[0], reasons[3]) == ("", "")
    assert "which had fallen by" in reasons[1]
    assert reasons[2].startswith("learns as trial 1: ")
    curves = {number: {1: Curve(FLAT)} for number in range(4)}
    flagged = barred([ran(number, FLAT) for number in range(4)], Numerics({1: Curve(FALLING)}, curves))
    assert list(map(bool, flagged)) == [False, True, True, True]


def test_what_a_later_round_clears_may_win_again() -> None:
    trials = [ran(0, FALLING), replace(ran(1, FALLING), disqualified_reason="of the first round")]
    numerics = compare_losses(standing_of(trials), {})
    assert numerics is not None
    assert barred(trials, numerics) == ["", ""]


def test_parity_is_required_of_what_cannot_be_told() -> None:
    trials = [ran(0, FLAT), ran(1, FLAT)]
    numerics = compare_losses(standing_of(trials), {})
    assert numerics is not None
    assert barred(list(trials), numerics) == ["", ""]
    assert "too short to tell" in barred(list(trials), numerics, require_parity=True)[1]
