"""Claims on simulated machines: what counts as side by side, and how often the interval holds the truth."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from autotune.core import Configuration, Outcome
from autotune.core.interval import Ratio
from autotune.sampler.claim import BESIDE, EACH, are_side_by_side, claim, speeds
from autotune.sampler.observation import Observation
from tests.sampler.test_cost_model import BASE, of

FAST, SECONDS = of(16), 5.0
"""Every measurement takes so long; the fast configuration is this many times as fast as the baseline."""

TRUE = 1.2


def measured(candidate: Configuration, started_s: float | None, error: float = 0.0, **facts: object) -> Observation:
    """A measurement of the baseline, a step of which takes a second, or of the fast one."""
    step_s = math.exp(error) / (TRUE if candidate == FAST else 1.0)
    usual = {"step_s": step_s, "feasible": True, "noise": 0.01, "seconds": SECONDS, "started_s": started_s}
    return Observation(candidate, Outcome.COMPLETED, **usual | facts)  # type: ignore[arg-type]


def in_turn(order: str, errors: Sequence[float] = (), start: int = 0, **facts: object) -> list[Observation]:
    """F and B, one after the other; a dot is a measurement of another one."""
    errors = [*errors, *[0.0] * (len(order) - len(errors))]
    return [
        measured(FAST if letter == "F" else BASE, SECONDS * (start + number), error, **facts)
        for number, (letter, error) in enumerate(zip(order, errors, strict=True))
        if letter != "."
    ]


def claimed(several: Sequence[Observation]) -> Ratio | None:
    fast, base = ([seen for seen in several if seen.configuration == candidate] for candidate in (FAST, BASE))
    return claim(fast, base, EACH)


def shown(several: Sequence[Observation]) -> Ratio:
    ratio = claimed(several)
    assert ratio is not None
    return ratio


# What is side by side -------------------------------------------------------------------------------------------


def test_what_begins_soon_after_on_the_same_device_is_side_by_side() -> None:
    first = measured(BASE, 0.0, device="0")
    assert are_side_by_side(first, measured(FAST, BESIDE * SECONDS, device="0"))
    assert not are_side_by_side(first, measured(FAST, BESIDE * SECONDS + 1.0, device="0"))
    assert are_side_by_side(first, measured(FAST, BESIDE * SECONDS + 1.0, device="0", seconds=2 * SECONDS)), (
        "the longer one counts"
    )
    assert not are_side_by_side(first, measured(FAST, 0.0, device="1"))


def test_without_times_the_same_round_is_side_by_side() -> None:
    first = measured(BASE, None, round=1)
    assert are_side_by_side(first, measured(FAST, None, round=1))
    assert are_side_by_side(first, measured(FAST, 100.0, round=1))
    assert not are_side_by_side(first, measured(FAST, None, round=2))
    assert not are_side_by_side(first, measured(FAST, None, round=1, device="1"))


@pytest.mark.parametrize("order", ["", "F", "FFFF", "FB", "FFB", "FBB", "FB........F", "FF..........BB"])
def test_nothing_is_claimed_without_two_of_each_side_by_side(order: str) -> None:
    assert claimed(in_turn(order)) is None


@pytest.mark.parametrize("order", ["FFBB", "FBFB", "FB......BF", "FB" + "." * 1000 + "FB"])
def test_two_of_each_side_by_side_are_a_claim(order: str) -> None:
    ratio = shown(in_turn(order))
    assert ratio == pytest.approx(TRUE)
    assert 1 < ratio.low < ratio < ratio.high < 1.4


def test_what_is_not_side_by_side_or_was_not_timed_does_not_count() -> None:
    both = shown(in_turn("FBFB"))
    far = measured(FAST, 1000.0, error=0.5)
    failed = Observation(BASE, Outcome.OUT_OF_MEMORY, started_s=10.0, seconds=SECONDS)
    again = shown([*in_turn("FBFB"), far, failed])
    assert (again, again.low, again.high) == (both, both.low, both.high)
    assert claimed([*in_turn("FBF"), failed]) is None
    on_zero = in_turn("FBFB", device="0")
    assert shown([*on_zero, *in_turn("FF", [0.2, 0.2], device="1")]) == shown(on_zero), "1 ran only one of them"
    assert claimed([*in_turn("FF", device="0"), *in_turn("BB", device="1")]) is None


# Several devices ------------------------------------------------------------------------------------------------


def test_devices_that_differ_cancel_in_a_cross_over() -> None:
    """Device 1 is a fifth slower; each of the two ran on both."""
    both = [*in_turn("FB", device="0"), *in_turn("BF", [0.2, 0.2], device="1")]
    assert shown(both) == pytest.approx(TRUE)
    uneven = [*in_turn("FBFB", device="0"), *in_turn("FB", [0.2, 0.2], device="1")]
    assert shown(uneven) == pytest.approx(TRUE)


# How sure a claim is --------------------------------------------------------------------------------------------


def errors(rng: np.random.Generator, count: int, noise: float, drift: float) -> list[float]:
    """Errors of measurements one after the other: of each process, and of a machine that remembers ten of them."""
    kept, wandered, several = math.exp(-0.1), rng.standard_normal(), []
    for _ in range(count):
        several.append(noise * rng.standard_normal() + drift * wandered)
        wandered = kept * wandered + math.sqrt(1 - kept**2) * rng.standard_normal()
    return several


@pytest.mark.parametrize(
    ("order", "noise", "drift", "widest"),
    [("FBFB", 0.0065, 0.0, 0.05), ("FFBBBF", 0.0065, 0.05, 0.1), ("FBFBFB", 0.1, 0.0, 0.5)],
)
def test_the_interval_holds_the_truth_in_95_of_100_searches(
    order: str, noise: float, drift: float, widest: float
) -> None:
    """Processes differ as their steps do, on a still machine and on one that drifts, or ten times as much; 3 % are chance."""
    rng = np.random.default_rng(0)
    ratios = [shown(in_turn(order, errors(rng, len(order), noise, drift))) for _ in range(100)]
    assert np.mean([ratio.low <= TRUE <= ratio.high for ratio in ratios]) >= 0.92
    assert np.median([ratio.relative_width for ratio in ratios]) < widest


def test_the_interval_of_a_cross_over_holds_the_truth_however_devices_differ() -> None:
    rng, held = np.random.default_rng(0), []
    for _ in range(80):
        several = []
        for order, device in (("FB", "0"), ("BFB", "1")):
            slower = 0.1 * rng.standard_normal()
            several += in_turn(
                order, [slower + error for error in errors(rng, 3, 0.0065, 0.05)][: len(order)], device=device
            )
        ratio = shown(several)
        held.append(ratio.low <= TRUE <= ratio.high)
    assert np.mean(held) >= 0.92


# What is compared -----------------------------------------------------------------------------------------------


def test_longer_samples_are_compared_by_tokens() -> None:
    """Steps of twice the tokens take twice as long."""
    longer = [measured(FAST, 10.0 * number, math.log(2), tokens=200.0) for number in range(2)]
    base = [measured(BASE, 10.0 * number + 5.0, tokens=100.0) for number in range(2)]
    assert claim(longer, base) == pytest.approx(TRUE)
    unknown = [measured(BASE, 10.0 * number + 5.0) for number in range(2)]
    assert claim(longer, unknown) == pytest.approx(TRUE / 2), "not all are counted"


def test_compiling_counts_by_its_share_of_the_run() -> None:
    compiled = in_turn("F.F.", settled=0.5)
    assert claim(compiled, in_turn(".B.B")) == pytest.approx(TRUE / 2)


# Speeds of several ----------------------------------------------------------------------------------------------


def test_speeds_are_those_of_a_step_or_of_tokens() -> None:
    fast, base = in_turn("FFF"), in_turn("B", start=3)
    assert speeds([fast, base]) == pytest.approx([TRUE, 1.0])
    counted = [[measured(FAST, 0.0, tokens=50.0)], [measured(BASE, 5.0, tokens=50.0)]]
    assert speeds(counted) == pytest.approx([50.0 * TRUE, 50.0])
    assert speeds([in_turn("F", settled=0.5), base]) == pytest.approx([TRUE / 2, 1.0])
    assert speeds([]) == []


def test_speeds_leave_out_how_a_machine_drifted() -> None:
    """It becomes slower while the baseline and another one are measured in turn, then the fast one at its end."""
    other = of(8)
    order = [BASE, other] * 5 + [FAST]
    slower = np.linspace(0.0, 0.2, len(order))
    several = [
        measured(one, SECONDS * number, slow) for number, (one, slow) in enumerate(zip(order, slower, strict=True))
    ]
    fast, base, same = speeds([[seen for seen in several if seen.configuration == one] for one in (FAST, BASE, other)])
    assert same == pytest.approx(base, rel=0.01)
    plain = TRUE * math.exp(-0.2 + float(slower[:-1:2].mean()))
    assert abs(fast / base - TRUE) < 0.5 * abs(plain - TRUE)
