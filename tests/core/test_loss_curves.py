"""Losses judged: what counts as learning like float32, and what is flagged."""

import json
import math
import random
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from autotune.core.loss_curves import JUDGED, LEAST_DIFFERENCE, SEEDS, STEPS, Curve, Numerics


def curve(level: float, noise: float = 0.0, seed: int = 0, **fields: int) -> Curve:
    """Thirty losses that fall to this level and lie there over the last ten steps, around it by some noise."""
    chance = random.Random(seed)
    falling = [level + 1 - step / 20 for step in range(STEPS - JUDGED)]
    return Curve((*falling, *(level + noise * chance.uniform(-1, 1) for _ in range(JUDGED))), **fields)


def compared(*levels: float, of: Curve | None = None, **fields: object) -> Numerics:
    """Float32's curves at these levels, and trial 7's."""
    return Numerics(tuple(curve(level) for level in levels), {7: of} if of else {}, **fields)  # type: ignore[arg-type]


def test_only_the_last_ten_losses_count() -> None:
    early, late = [9.0] * (STEPS - JUDGED), [2.0] * JUDGED
    assert Curve((*early, *late)).level == 2.0
    assert Curve((*[-5.0] * (STEPS - JUDGED), *late)).level == 2.0
    assert math.isnan(Curve().level)


def test_the_spread_is_the_sample_deviation_of_the_seeds_means() -> None:
    numerics = compared(8.0, 8.1, 8.3)
    assert numerics.level == pytest.approx(fmean([8.0, 8.1, 8.3]))
    assert numerics.deviation == pytest.approx(stdev([8.0, 8.1, 8.3]))
    low, high = numerics.band or (0, 0)
    assert (low, high) == pytest.approx(
        (numerics.level - 3 * numerics.deviation, numerics.level + 3 * numerics.deviation)
    )


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_losses_a_flag_means_outside_the_band_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    scale = 10 ** chance.uniform(-3, 3)
    numerics = compared(*(scale * chance.uniform(1, 1.2) for _ in SEEDS))
    mean, spread = numerics.level, numerics.deviation
    own = curve(mean + spread * chance.uniform(-6, 6), noise=spread, seed=seed)
    flagged = bool(replace(numerics, curves={7: own}).flag(7))
    assert flagged == (abs(fmean(own.losses[-10:]) - mean) > max(3 * spread, LEAST_DIFFERENCE * mean))
    # A unit of the loss decides nothing: all curves twice as high are judged alike.
    twice = [Curve(tuple(2 * loss for loss in reference.losses)) for reference in (*numerics.references, own)]
    assert bool(Numerics(tuple(twice[:-1]), {7: twice[-1]}).flag(7)) == flagged
    # Each of float32's own curves lies within its band: no mean of three is farther than 1.16 deviations from theirs.
    as_trials = replace(numerics, curves=dict(enumerate(numerics.references)))
    assert not any(as_trials.flag(number) for number in as_trials.curves)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [1, 7, 30])
def test_a_loss_that_is_not_finite_is_flagged_with_its_step(bad: float, step: int) -> None:
    losses = list(curve(8.1).losses)
    losses[step - 1] = bad
    numerics = compared(8.0, 8.1, 8.2, of=Curve(tuple(losses)))
    assert numerics.flag(7) == f"the loss became {bad} in step {step} of 30"
    assert numerics.is_checked(7)


def test_what_is_unknown_is_neither_checked_nor_flagged() -> None:
    failed = compared(8.0, 8.1, 8.2, of=Curve(problem="out of memory: it did not fit"))
    no_reference = compared(8.0, of=curve(99.0), problem="fp32 with seed 0 cannot be trained: out of memory")
    for numerics, number in ((failed, 7), (failed, 8), (no_reference, 7), (Numerics(), 0)):
        assert numerics.flag(number) == ""
        assert not numerics.is_checked(number)
    assert no_reference.band is None


@pytest.mark.parametrize("spread", [0.0, 1e-9, 1e-4])
def test_seeds_that_change_next_to_nothing_leave_room_for_rounding_alone(spread: float) -> None:
    numerics = compared(8.0 - spread, 8.0, 8.0 + spread)
    for level, flagged in ((8.0, False), (7.9921, False), (8.0079, False), (8.0081, True), (7.9919, True), (8.5, True)):
        assert bool(replace(numerics, curves={7: curve(level)}).flag(7)) == flagged
    if not spread:
        assert replace(numerics, curves={7: curve(8.5)}).flag(7) == (
            "loss 8.5 is not fp32's 8, which is the same with every seed"
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_every_fact_survives_strict_json(bad: float) -> None:
    numerics = Numerics(
        (curve(8.0), Curve((8.0, bad))),
        {3: curve(8.1, skipped_steps=2), 12: Curve((bad, 1.5)), 40: Curve(problem="out of memory")},
        {"precision": "fp32", "micro_batch_size": 4},
        "a folder",
        "a problem",
        "a note",
    )
    text = json.dumps(numerics.to_dict(), allow_nan=False)
    again = Numerics.from_dict(json.loads(text))
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    assert again.curves[3] == numerics.curves[3]
    assert (again.curves[12].non_finite_step, again.references[1].non_finite_step) == (1, 2)
    assert str(again.curves[12].losses[0]) == str(bad)
    assert (again.weights, again.problem, again.note) == ("a folder", "a problem", "a note")
