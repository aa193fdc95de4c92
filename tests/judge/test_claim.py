"""Claims from pairs of measurements: what is a pair, when pairs are looked at, and how often an interval holds the truth."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.interval import Ratio
from autotune.judge.claim import claim, critical, log_ratio, pairs, pairs_needed
from autotune.judge.constants import BESIDE, LEAST_NOISE, LOOKS
from tests.makers import completed, configuration, ended

SPEED = "samples_per_second"
BASE, FAST = configuration(8), configuration(16)
PROBE_S = 10.0
"""Seconds of each measurement."""

TRUE = 1.2


def measured(of: Configuration, rate: float, **facts: Any) -> Measurement:
    return completed(of, rate, spread=0.0, **{"probe_seconds": PROBE_S, **facts})


def of_rounds(number: int, rates: Sequence[float], **facts: Any) -> Trial:
    """A trial whose rounds had these speeds; the first measurement of a rival of the baseline was ten times as fast."""
    of = FAST if number else BASE
    rounds = (measured(of, rate, **{"round": place, **facts}) for place, rate in enumerate(rates, 1))
    return Trial(number, of, measured(of, (10 if number else 1) * rates[0]), tuple(rounds))


def shown(ratios: Sequence[float]) -> Ratio | None:
    """The claim of a trial that was so many times as fast as the baseline, round by round."""
    return claim(of_rounds(1, [10 * ratio for ratio in ratios]), of_rounds(0, [10.0] * len(ratios)), SPEED)


def in_time(trial: Trial, *starts: float | None, device: str = "") -> Trial:
    """The trial with the starts of its rounds, in seconds."""
    rounds = zip(trial.confirmations, starts, strict=True)
    return replace(trial, confirmations=tuple(replace(each, started_s=start, device=device) for each, start in rounds))


# Pairs ----------------------------------------------------------------------------------------------------------


def test_a_pair_is_a_round_of_each_of_one_number_that_both_completed() -> None:
    fast, base = of_rounds(1, [20.0, 21.0, 22.0]), of_rounds(0, [10.0, 11.0])
    assert pairs(fast, base) == [*zip(fast.confirmations, base.confirmations, strict=False)]
    failed = replace(base, confirmations=(base.confirmations[0], ended(Outcome.OUT_OF_MEMORY, round=2)))
    assert len(pairs(fast, failed)) == 1
    assert pairs(replace(fast, confirmations=()), base) == [], "a first measurement is no part of one"
    shifted = replace(base, confirmations=(replace(base.confirmations[0], round=3),))
    assert pairs(fast, shifted) == [(fast.confirmations[2], shifted.confirmations[0])]


@pytest.mark.parametrize(
    ("start", "seconds", "device", "count"),
    [
        (BESIDE * PROBE_S, PROBE_S, "0", 1),
        (BESIDE * PROBE_S + 1, PROBE_S, "0", 0),
        (BESIDE * PROBE_S + 1, 2 * PROBE_S, "0", 1),
        (None, PROBE_S, "0", 1),
        (PROBE_S, PROBE_S, "0 + 1", 1),
        (PROBE_S, PROBE_S, "1", 0),
        (None, PROBE_S, "1", 0),
    ],
    ids=[
        "soon after",
        "too late",
        "the longer one counts",
        "unknown time",
        "ranks on it and another one",
        "other device",
        "unknown time, other device",
    ],
)
def test_both_of_a_pair_ran_on_one_device_side_by_side(
    start: float | None, seconds: float, device: str, count: int
) -> None:
    base = in_time(of_rounds(0, [10.0]), 0.0, device="0")
    fast = in_time(of_rounds(1, [20.0], probe_seconds=seconds), start, device=device)
    assert len(pairs(fast, base)) == len(pairs(base, fast)) == count


# A pair's ratio -------------------------------------------------------------------------------------------------


def with_steps(untimed: int, *seconds: float, **facts: Any) -> Measurement:
    whole = measured(BASE, 10.0)
    steps = tuple(replace(whole.steps[0], seconds=each) for each in seconds)
    return replace(whole, **{"steps": steps, "untimed_steps": untimed, "tokens_per_sample": 96.0, **facts})


def test_a_ratio_is_of_the_steps_that_both_ran() -> None:
    """The third and fourth steps; those before and after are of other samples."""
    mine, its = with_steps(1, 9.0, 1.0, 2.0), with_steps(2, 2.0, 4.0, 50.0)
    assert log_ratio(mine, its, SPEED) == pytest.approx(math.log(2))
    assert log_ratio(its, mine, SPEED) == pytest.approx(-math.log(2))


def test_with_fewer_than_two_common_steps_a_ratio_is_of_mean_speeds() -> None:
    mine, its = with_steps(2, 1.0, 1.0), with_steps(3, 3.0, 3.0)
    assert log_ratio(mine, its, SPEED) == pytest.approx(math.log(3))
    composed = with_steps(3, 1.0, 2.0, accumulation_steps=4, accumulation_steps_run=2)
    assert composed.is_composed
    both = float(composed.samples_per_second or 0.0) / float(its.samples_per_second or 1.0)
    assert log_ratio(composed, its, SPEED) == pytest.approx(math.log(both)), "not all micro-steps were run"


def test_steps_of_other_samples_are_compared_by_mean_speeds() -> None:
    """Batches grouped by length begin with the longest: twice the tokens in twice the seconds."""

    def of(tokens: int, *seconds: float) -> Measurement:
        whole = with_steps(2, *seconds)
        steps = (replace(step, tokens=tokens, non_padding_tokens=tokens) for step in whole.steps)
        return replace(whole, steps=tuple(steps), tokens_per_sample=tokens / 48)

    assert log_ratio(of(200, 2.0, 2.0), of(100, 1.0, 1.0), "tokens_per_second") == pytest.approx(0.0)
    assert log_ratio(of(100, 2.0, 2.0, 8.0), of(100, 1.0, 1.0), "tokens_per_second") == pytest.approx(-math.log(2))


def test_compiling_counts_by_its_share_of_the_run() -> None:
    base = measured(BASE, 10.0)
    compiled = replace(base, training_steps=100, compile_s=20.0)
    assert log_ratio(compiled, base, SPEED) == pytest.approx(math.log(compiled.after_compiling))
    assert compiled.after_compiling == pytest.approx(0.96)


# Looks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "looked_at"), [(0, 0), (1, 0), (2, 2), (3, 3), (5, 3), (6, 6), (11, 6), (12, 12), (20, 12)]
)
def test_pairs_are_looked_at_after_fixed_numbers_of_them(count: int, looked_at: int) -> None:
    ratios = [2.0 + 0.01 * number for number in range(count)]
    ratio = shown(ratios) if count else None
    expected = shown(ratios[:looked_at]) if looked_at else None
    assert (ratio is None) == (looked_at == 0)
    assert ratio is None or (ratio, ratio.low, ratio.high) == (expected, expected.low, expected.high)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("count", "share", "t"), [(2, 0.05, 12.706), (3, 0.05, 4.303), (6, 0.02, 3.365), (12, 0.02, 2.718)]
)
def test_the_interval_is_students(count: int, share: float, t: float) -> None:
    """Student's t of count - 1 degrees of freedom, as in the printed tables."""
    assert LOOKS[count] == share
    assert critical(count, share) == pytest.approx(t / math.sqrt(count), rel=0.005)
    logarithms = 0.1 + 0.02 * np.random.default_rng(0).standard_normal(count)
    ratio, half = shown([*np.exp(logarithms)]), critical(count, share) * logarithms.std(ddof=1)
    assert ratio is not None
    assert np.log([ratio, ratio.low, ratio.high]) == pytest.approx(
        logarithms.mean() + half * np.array([0, -1, 1]), rel=1e-3
    )


def test_pairs_that_agree_by_chance_do_not_make_a_claim_exact() -> None:
    ratio = shown([TRUE, TRUE])
    assert ratio == pytest.approx(TRUE)
    assert ratio is not None
    assert math.log(ratio.high / ratio.low) == pytest.approx(2 * critical(2, LOOKS[2]) * LEAST_NOISE)


@pytest.mark.parametrize("count", LOOKS)
def test_an_interval_misses_the_truth_as_often_as_its_look_may(count: int) -> None:
    rng, ratios = np.random.default_rng(0), list[Ratio | None]()
    for _ in range(300):
        ratios.append(shown([*TRUE * np.exp(0.05 * rng.standard_normal(count))]))
    missed = np.mean([ratio is not None and not ratio.low <= TRUE <= ratio.high for ratio in ratios])
    assert missed <= LOOKS[count] + 0.03


def test_the_pairs_needed_are_those_of_the_first_later_look_that_would_tell() -> None:
    ratios = [1.1, 1.3, 1.5, 0.1]
    ratio = shown(ratios)
    assert ratio is not None
    needed = pairs_needed(ratio, len(ratios))
    assert needed == 6
    repeated = shown((ratios[:3] * 2)[:needed])
    assert repeated is not None
    assert ratio.low < 1 < repeated.low
    wide = shown([2.5, 0.5, 1.0])
    assert wide is not None
    assert pairs_needed(wide, 3) is None


def test_what_slows_both_of_a_pair_down_cancels_and_first_measurements_do_not_count() -> None:
    slower = [1.0, 0.5, 0.8]
    ratio = claim(of_rounds(1, [12.0 * each for each in slower]), of_rounds(0, [10.0 * each for each in slower]), SPEED)
    assert ratio is not None
    assert (ratio, ratio.relative_width) == (pytest.approx(TRUE), pytest.approx(0.0, abs=0.01))
