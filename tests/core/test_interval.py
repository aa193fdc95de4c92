"""Numbers with their intervals: how often they hold the truth, and what widens them."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
from scipy import stats

from autotune.core import Interval
from autotune.core.interval import (
    MEMORY,
    Ratio,
    foreseen_width,
    quotient_interval,
    ratio_interval,
    student_t,
)

RUNS = 4000


def noise(runs: int, steps: int, hurst: float, seed: int) -> np.ndarray:
    """[runs, steps] of fractional Gaussian noise of variance 1, exact: by Cholesky's factor of its covariance.

    Autocovariance (|k+1|^2H - 2|k|^2H + |k-1|^2H) / 2: Beran, Statistics for Long-Memory Processes, section 2.3.
    """
    lag = np.arange(steps, dtype=float)
    covariance = ((lag + 1) ** (2 * hurst) - 2 * lag ** (2 * hurst) + np.abs(lag - 1) ** (2 * hurst)) / 2
    places = np.arange(steps)
    factor = np.linalg.cholesky(covariance[np.abs(places[:, None] - places[None, :])])
    drawn = np.random.default_rng(seed).standard_normal((runs, steps))
    return drawn @ factor.T  # type: ignore[no-any-return]


def coverage(times: np.ndarray, truth: float, **options: float) -> float:
    """The share of rows of step times (8 samples each) whose interval holds the true speed."""
    held = 0
    for row in times:
        interval = ratio_interval([8] * len(row), list(row), **options)
        held += interval.low <= truth <= interval.high
    return held / len(times)


# A rate over steps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "spread"), [(3, 0.02), (5, 0.05), (8, 0.2), (24, 0.05), (24, 0.3)])
def test_the_interval_of_independent_numbers_holds_the_truth_in_95_of_100_cases(steps: int, spread: float) -> None:
    times = np.maximum(0.01, 1 + spread * noise(RUNS, steps, 0.5, steps))
    assert 0.93 <= coverage(times, 8.0, memory=0.5) <= 0.97


@pytest.mark.parametrize("steps", [5, 8, 24])
@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_the_interval_of_neighbouring_steps_holds_the_truth_though_their_noise_has_a_long_memory(
    steps: int, spread: float
) -> None:
    times = 1 + spread * noise(RUNS, steps, MEMORY, steps)
    assert 0.92 <= coverage(times, 8.0) <= 0.98


def test_with_a_memory_of_a_half_it_is_the_textbook_s_interval() -> None:
    times = [1.0, 1.1, 0.9, 1.05, 0.97, 0.98]
    interval = ratio_interval([8] * 6, times, memory=0.5)
    low, high = stats.t.interval(0.95, 5, np.mean(times), stats.sem(times))
    assert interval == pytest.approx(8 / np.mean(times))
    assert interval.high - interval.low == pytest.approx(interval * (high - low) / np.mean(times), rel=0.01)


def test_steps_of_different_size_share_one_speed() -> None:
    counts = [int(count) for count in np.random.default_rng(1).integers(4, 40, 30)]
    interval = ratio_interval(counts, [count / 16 for count in counts])
    assert interval == pytest.approx(16)
    assert interval.high - interval.low < 1e-6


def test_one_step_alone_has_an_endless_interval_and_none_goes_below_zero() -> None:
    interval = ratio_interval([8], [2.0])
    assert (interval.value, interval.low, interval.high) == (4.0, 0.0, math.inf)
    assert ratio_interval([8, 8], [0.1, 10.0]).low == 0.0


# What further steps would bring ---------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [0.5, MEMORY])
@pytest.mark.parametrize(("steps", "more"), [(2, 4), (4, 4), (6, 18), (10, 0)])
def test_the_width_foreseen_is_the_width_that_so_many_steps_of_the_same_spread_have(
    steps: int, more: int, memory: float
) -> None:
    def alternating(count: int) -> Interval:
        """Steps whose sample standard deviation is 0.01 whatever their number."""
        apart = 0.01 * math.sqrt((count - 1) / count)
        return ratio_interval([8] * count, [1 + apart, 1 - apart] * (count // 2), memory)

    foreseen = foreseen_width(alternating(steps), steps, more, memory)
    assert foreseen == pytest.approx(alternating(steps + more).relative_width)


# A quotient of pairs --------------------------------------------------------------------------------------------


def test_the_interval_of_a_quotient_is_that_of_its_logarithms() -> None:
    above, below = [10.0, 11.0, 12.0], [5.0, 6.0, 5.5]
    logarithms = np.log(above) - np.log(below)
    low, high = np.exp(stats.t.interval(0.95, 2, logarithms.mean(), stats.sem(logarithms)))
    interval = quotient_interval(above, below)
    assert interval == pytest.approx(np.exp(logarithms.mean()))
    assert (interval.low, interval.high) == (pytest.approx(low, rel=0.001), pytest.approx(high, rel=0.001))
    turned = quotient_interval(below, above)
    assert (turned.low, turned.high) == (pytest.approx(1 / interval.high), pytest.approx(1 / interval.low))


def test_one_pair_alone_has_an_endless_interval_and_an_unpaired_number_is_refused() -> None:
    interval = quotient_interval([3.0], [2.0])
    assert (interval.value, interval.low, interval.high) == (pytest.approx(1.5), 0.0, math.inf)
    with pytest.raises(ValueError, match="zip"):
        quotient_interval([1.0, 2.0], [1.0])


# Small things ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.02, 0.05])
@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 10, 11, 23, 59, 500])
def test_student_s_quantile_is_right_within_one_percent(degrees: int, share: float) -> None:
    within = 1e-9 if degrees < 3 else 0.02 if degrees == 3 else 0.01
    assert student_t(degrees, share) == pytest.approx(stats.t.ppf(1 - share / 2, degrees), rel=within)


def test_an_interval_is_a_number() -> None:
    speed = Interval(4.0, 3.5, 4.5)
    assert speed + 1 == 5
    assert speed == 4.0
    assert f"{speed:.2f}" == "4.00"
    assert max([Interval(1.0, 0, 2), speed]).high == 4.5
    assert speed.relative_width == pytest.approx(0.25)
    assert json.dumps(speed) == "4.0"
    assert Interval(0.0, 0.0, 1.0).relative_width == math.inf
    for copied in (pickle.loads(pickle.dumps(speed)), copy.deepcopy(speed)):
        assert (type(copied), copied.value, copied.low, copied.high) == (Interval, 4.0, 3.5, 4.5)


def test_a_ratio_reads_as_times_with_its_interval_and_is_a_number_everywhere_else() -> None:
    ratio = Ratio(1.461465, 1.2649, 1.7012)
    assert str(ratio) == f"{ratio}" == "1.46x (1.26 to 1.70)"
    assert (float(ratio), f"{ratio:.3f}", json.dumps({"speedup": ratio})) == (
        1.461465,
        "1.461",
        '{"speedup": 1.461465}',
    )
    assert str(Ratio(1.0, 1.0, 1.0)) == "1.00x"
    assert str(Ratio(1.5, 1.2, math.inf)) == "1.50x (at least 1.20)"
    again = pickle.loads(pickle.dumps(ratio))
    assert (type(again), str(again)) == (Ratio, str(ratio))
    assert type(quotient_interval([2.0, 2.1], [1.0, 1.0])) is Ratio


def test_a_value_with_half_its_interval_wider_than_half_of_it_is_vague() -> None:
    assert Interval(10.0, 4.0, 16.0).is_vague
    assert not Interval(10.0, 6.0, 14.0).is_vague
