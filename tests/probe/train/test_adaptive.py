"""When a probe has seen enough: settled first, then timed until further steps would tell no more."""

import random
from collections.abc import Callable

import pytest

from autotune.core import Interval
from autotune.core.interval import foreseen_width, ratio_interval
from autotune.probe.order import CONFIRMATION, CUDA_CONFIRMATION, CUDA_PROBE, Timing, timings
from autotune.probe.train.adaptive import HOPELESS_LEAST, Decision, decide, settled

TIMING = Timing(untimed_least=3, untimed_most=8, timed_least=5, timed_most=24, target=0.02, seconds=20.0)
FAST = 99.0


def interval(value: float, width: float) -> Interval:
    """An interval of this relative full width."""
    return Interval(value, value * (1 - width / 2), value * (1 + width / 2))


# Untimed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("untimed_s", "enough"),
    [
        ([1.0, 1.0], False),
        ([9.0, 1.0, 1.09], True),
        ([9.0, 1.0, 0.91], True),
        ([1.0, 1.0, 2.0], False),
        ([9.0, 6.0, 4.0], False),
        ([9.0, 1.3, 1.0, 1.0], False),
        ([9.0, 1.3, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, 2.0], False),
        ([1.0, 1.0, 1.0, 2.0, 1.05], True),
    ],
)
def test_untimed_steps_end_with_one_like_those_before_it_neither_slower_nor_faster(
    untimed_s: list[float], enough: bool
) -> None:
    assert settled(untimed_s, TIMING) is enough


# On a GPU -------------------------------------------------------------------------------------------------------

WINDOWS = Timing(untimed_least=2, window_s=1.0, untimed_seconds_most=12.0)


def first_settled(step_s: Callable[[float], float], mhz: Callable[[float], float | None], timing: Timing) -> float:
    """Seconds without the first step until such steps have settled; both by the seconds before a step."""
    times, clocks, taken = [9.0], [mhz(0.0)], 0.0
    while not settled(times, timing, clocks):
        times.append(step_s(taken))
        taken += times[-1]
        clocks.append(mhz(taken))
    return taken


def steady(of: float) -> Callable[[float], float]:
    return lambda taken: of


def test_a_steady_gpu_has_settled_after_two_windows() -> None:
    step = steady(0.051)  # not 0.05, whose sums meet the ends of windows or not, by how a version of Python rounds
    assert first_settled(step, steady(1700), WINDOWS) == pytest.approx(2.0, abs=0.06)
    assert first_settled(step, lambda taken: None, WINDOWS) == pytest.approx(2.0, abs=0.06), "clock unknown"
    assert first_settled(steady(3.0), steady(1700), WINDOWS) == pytest.approx(6.0), "windows of a step"
    assert first_settled(steady(13.0), steady(1700), WINDOWS) == pytest.approx(13.0), "longer than all that it may take"


def test_steps_that_become_slower_have_not_settled() -> None:
    assert first_settled(lambda taken: 0.05 + min(taken, 4.0) / 1000, steady(1700), WINDOWS) > 5.0
    assert first_settled(lambda taken: 3.0 + taken / 10, steady(1700), WINDOWS) >= 12.0


def test_a_clock_that_falls_has_not_settled_however_much_steps_differ_by_chance() -> None:
    chance = random.Random(0)

    def noisy(taken: float) -> float:
        return 0.05 * chance.uniform(0.7, 1.3)

    assert first_settled(noisy, steady(1700), WINDOWS) < 3.0
    assert first_settled(noisy, lambda taken: 1980 - 28 * min(taken, 6.0), WINDOWS) > 6.0
    assert first_settled(noisy, lambda taken: 1980 - 28 * taken, WINDOWS) == pytest.approx(12.0, abs=0.1)


# Timed ----------------------------------------------------------------------------------------------------------


def test_a_speed_known_well_enough_is_enough_from_the_least_on() -> None:
    known = interval(10.0, 2 * TIMING.target)
    assert decide(known, TIMING.timed_least - 1, 1.0, TIMING, None) is Decision.GO_ON
    assert decide(known, TIMING.timed_least, 1.0, TIMING, None) is Decision.ENOUGH


def test_a_probe_goes_on_while_further_steps_can_give_the_interval_aimed_at() -> None:
    wide = interval(10.0, 0.06)
    assert foreseen_width(wide, 5, 19) <= 2 * TIMING.target < wide.relative_width
    assert decide(wide, 5, 1.0, TIMING, None) is Decision.GO_ON
    assert decide(wide, 24, 1.0, TIMING, None) is Decision.ENOUGH


def test_a_probe_ends_where_all_the_steps_allowed_would_not_give_the_interval_aimed_at() -> None:
    hopelessly_wide = interval(10.0, 0.5)
    assert foreseen_width(hopelessly_wide, 5, 19) > 2 * TIMING.target
    assert decide(hopelessly_wide, 5, 1.0, TIMING, None) is Decision.ENOUGH
    assert decide(hopelessly_wide, 4, 1.0, TIMING, None) is Decision.GO_ON, "the least is the least"


@pytest.mark.parametrize(("steps", "said"), [(2, Decision.GO_ON), (3, Decision.ENOUGH), (4, Decision.ENOUGH)])
def test_a_probe_ends_when_its_seconds_are_over_but_not_before_three_steps(steps: int, said: Decision) -> None:
    assert decide(interval(10.0, 0.06), steps, TIMING.seconds + 0.1, TIMING, None) == said


def test_a_probe_wholly_below_the_best_is_hopeless_from_three_steps_on() -> None:
    slow = Interval(50.0, 40.0, 60.0)
    assert HOPELESS_LEAST == 3
    assert decide(slow, 2, 1.0, TIMING, FAST) is Decision.GO_ON
    assert decide(slow, 3, 1.0, TIMING, FAST) is Decision.HOPELESS
    assert decide(slow, 3, 1.0, TIMING, None) is Decision.GO_ON
    assert decide(slow, 24, 99.0, TIMING, FAST) is Decision.HOPELESS, "it may not win, however long it was measured"


@pytest.mark.parametrize("timing", [TIMING, CONFIRMATION])
@pytest.mark.parametrize("spread", [0.0, 0.001, 0.01, 0.03, 0.3])
def test_every_probe_ends_between_its_least_and_its_most(timing: Timing, spread: float) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        seconds: list[float] = []
        said = Decision.GO_ON
        while said is Decision.GO_ON:
            seconds.append(0.1 * max(0.1, chance.gauss(1.0, spread)))
            speed = ratio_interval([8] * len(seconds), seconds)
            said = decide(speed, len(seconds), sum(seconds), timing, None)
        assert said is Decision.ENOUGH
        assert timing.timed_least <= len(seconds) <= timing.timed_most
        if spread in (0.0, 0.3):
            assert len(seconds) == timing.timed_least


# Seconds --------------------------------------------------------------------------------------------------------


def test_on_a_gpu_steps_take_seconds_beyond_their_most_and_on_a_cpu_they_need_not() -> None:
    assert timings(is_cpu=False) == (CUDA_PROBE, CUDA_CONFIRMATION)
    known = interval(10.0, 0.001)
    assert decide(known, 50, 0.99, CUDA_PROBE, None) is Decision.GO_ON
    assert decide(known, 50, 1.0, CUDA_PROBE, None) is Decision.ENOUGH
    assert decide(known, 2, 9.0, CUDA_PROBE, None) is Decision.GO_ON, "the least is the least"
    probe, confirmation = timings(is_cpu=True)
    assert settled([0.1, 0.05, 0.05], probe)
    assert decide(known, confirmation.timed_least, 0.5, confirmation, None) is Decision.ENOUGH
