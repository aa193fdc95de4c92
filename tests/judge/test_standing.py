"""Which trial is best, which are rivals, and how much faster than the baseline."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.core import Configuration, Outcome, Trial
from autotune.core.interval import quotient_interval
from autotune.judge.constants import PROCESSES_DIFFER
from autotune.judge.objective import pareto_front, round_ratio, speed
from autotune.study.plan import Plan
from tests.makers import ALLOWED, MIB, completed, configuration, ended, standing_of, trial

SPEED = "samples_per_second"
PLAN = Plan(n_trials=1, objective=SPEED, allowed_bytes=ALLOWED)
FAST = configuration(16)


def with_tokens(samples_per_second: float, tokens_in_a_sample: int) -> Trial:
    one = trial(0, samples_per_second)
    steps = tuple(replace(step, tokens=step.samples * tokens_in_a_sample) for step in one.measurement.steps)
    return replace(one, measurement=replace(one.measurement, steps=steps))


# Score of a measurement ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [item for item in Outcome if item is not Outcome.COMPLETED])
def test_the_score_of_what_does_not_fit_is_0(outcome: Outcome) -> None:
    assert PLAN.score(ended(outcome)) == 0.0


def test_tokens_are_compared_where_they_are_known() -> None:
    assert replace(PLAN, objective="tokens_per_second").score(with_tokens(10.0, 7).measurement) == pytest.approx(70.0)
    assert speed(with_tokens(10.0, 7).measurement, "tokens_per_second") == pytest.approx(70.0)
    assert speed(with_tokens(10.0, 7).measurement, SPEED) == pytest.approx(10.0)
    assert speed(with_tokens(10.0, 0).measurement, "tokens_per_second") == pytest.approx(10.0)


# What is proven --------------------------------------------------------------------------------------------------


def at(trial: Trial, *starts: float, device: str = "") -> Trial:
    """The trial with the starts of its measurements, in seconds; each takes 10 s."""
    probe, *rounds = (
        replace(measured, started_s=start, probe_seconds=10.0, device=device)
        for measured, start in zip(trial.measurements, starts, strict=True)
    )
    return replace(trial, measurement=probe, confirmations=tuple(rounds))


@pytest.mark.parametrize(
    ("starts", "device", "is_shown"),
    [((100, 30, 40), "a", True), ((10, 30, 900), "a", False), ((10, 30, 40), "b", False)],
    ids=["two pairs", "one pair", "another device"],
)
def test_two_pairs_show_how_much_faster_a_trial_is(starts: tuple[float, ...], device: str, is_shown: bool) -> None:
    slow = at(trial(0, 10.0, confirmed=10.0), 0, 20, 50, device="a")
    fast = at(trial(1, 20.0, of=FAST, confirmed=20.0), *starts, device=device)
    standing = standing_of([slow, fast])
    assert standing.is_shown(fast) == is_shown
    assert standing.pairs(fast) == {"a": 1 + is_shown, "b": 0}[device]
    probed = replace(fast, confirmations=())
    assert not standing_of([slow, probed]).is_shown(probed)


def test_of_the_baseline_there_is_nothing_to_prove_and_without_one_that_runs_a_second_measurement_counts() -> None:
    assert standing_of([trial(0)]).is_shown(trial(0))
    for baseline in (None, Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY))):
        known = [baseline] if baseline else []
        assert not standing_of([*known, trial(1, of=FAST)]).is_shown(trial(1, of=FAST))
        assert standing_of([*known, trial(1, of=FAST, confirmed=10.0)]).is_shown(trial(1, of=FAST, confirmed=10.0))
    failed = replace(trial(1, 20.0, confirmed=20.0), confirmations=(ended(Outcome.OUT_OF_MEMORY, round=1),) * 2)
    assert not standing_of([trial(0, confirmed=10.0), failed]).is_shown(failed)


# The best -------------------------------------------------------------------------------------------------------


def test_the_fastest_feasible_trial_is_best() -> None:
    trials = [trial(0, 10), trial(1, 30), trial(2, 20), Trial(3, configuration(48), ended(Outcome.OUT_OF_MEMORY))]
    assert standing_of(trials).answer is trials[1]
    assert standing_of([trials[3]]).answer is None
    assert standing_of([]).answer is None


def test_a_proven_trial_comes_before_a_faster_one_that_is_not() -> None:
    trials = [trial(0, 10, confirmed=10), trial(1, 20, confirmed=19), trial(2, 30)]
    assert standing_of(trials).answer is trials[1]


def test_a_probe_that_was_lucky_is_outweighed_by_what_is_measured_again() -> None:
    trials = [trial(0, 30, confirmed=30), trial(1, 33, confirmed=29)]
    assert standing_of(trials).answer is trials[0]


@pytest.mark.parametrize(
    "fast",
    [
        replace(trial(1, 50), confirmations=(ended(Outcome.OUT_OF_MEMORY),)),
        trial(1, 30.0, ended_early=True),
        replace(trial(1, 30.0, 100 * MIB, confirmed=30.0), disqualified_reason="its loss differs from the baseline's"),
        trial(1, 30.0, allocator_retries=3),
    ],
    ids=["failed when measured again", "ended early", "barred", "fitted only as the allocator tried again"],
)
def test_what_never_wins(fast: Trial) -> None:
    trials = [trial(0, 10.0), fast, trial(2, 20.0)]
    assert standing_of(trials).answer is trials[2]
    assert standing_of([fast]).answer is None


def test_of_trials_as_fast_with_as_many_changes_the_one_with_more_free_memory_is_best() -> None:
    slow = trial(0, 15.0, 100 * MIB, confirmed=15.0, spread=0.02)
    fast = trial(1, 20.0, 800 * MIB, confirmed=20.0, spread=0.02)
    lean = trial(2, 19.96, 300 * MIB, confirmed=19.96, spread=0.02)
    assert standing_of([slow, fast, lean]).answer is lean
    slow, fast = in_rounds(0, [20.0, 21.0, 19.0]), in_rounds(1, [100.0, 60.0, 80.0], 800 * MIB)
    lean = in_rounds(2, [64.0, 70.0, 58.0], 300 * MIB)
    assert standing_of([slow, fast, lean]).answer is fast, "an interval too wide to tell is no proof that two are equal"


# What learns differently wins only if it is surely faster --------------------------------------------------------

FP32 = configuration(8, precision="fp32", optimizer="adamw_torch_fused")
BF16 = configuration(8, precision="bf16", optimizer="adamw_torch_fused")
WORKERS = configuration(8, precision="fp32", optimizer="adamw_torch", workers=2)


def of(one: Trial, configuration: Configuration) -> Trial:
    return replace(one, configuration=configuration)


def rivals(other: Configuration, *gains: float) -> list[Trial]:
    """The baseline and a rival that was so many times as fast in each of three rounds."""
    return [of(in_rounds(0, [10.0] * 3), FP32), of(in_rounds(1, [10 * gain for gain in gains]), other)]


@pytest.mark.parametrize(
    ("other", "gains", "wins"),
    [
        (BF16, (0.6, 2.4, 1.2), False),
        (BF16, (1.001, 1.004, 0.999), False),
        (BF16, (1.5, 1.6, 1.4), True),
        (WORKERS, (0.6, 2.4, 1.2), False),
        (WORKERS, (1.5, 1.6, 1.4), True),
    ],
    ids=["open", "as fast", "surely faster", "open, learns alike", "surely faster, learns alike"],
)
def test_a_configuration_wins_only_if_it_is_surely_faster(
    other: Configuration, gains: tuple[float, ...], wins: bool
) -> None:
    trials = rivals(other, *gains)
    best = standing_of(trials).answer
    assert best is not None
    assert best.number == int(wins)
    gain = standing_of([trials[0], trials[1]]).gain(trials[1])
    assert gain is not None
    assert gain > 1
    lost = Trial(0, FP32, ended(Outcome.OUT_OF_MEMORY))
    assert standing_of([lost, trials[1]]).answer is trials[1], "nothing to prove where the baseline does not run"


def test_of_what_cannot_be_told_apart_the_one_with_the_fewest_changes_wins() -> None:
    slow = of(in_rounds(0, [10.0, 10.1, 9.9]), FP32)
    plain = of(in_rounds(1, [19.8, 20.2, 19.9], 800 * MIB), BF16)
    busy = of(in_rounds(2, [19.9, 20.1, 20.0], 300 * MIB), replace(BF16, settings=(*BF16.settings, ("workers", 4))))
    assert standing_of([slow, plain, busy]).answer is plain, "four workers that bring nothing which was shown"
    told = of(in_rounds(2, [20.6, 21.0, 20.7]), busy.configuration)
    assert standing_of([slow, plain, told]).answer is told
    twins = [trial(1, 19.97, 800 * MIB, of=BF16), trial(2, 20.0, 300 * MIB, of=busy.configuration)]
    assert standing_of([trial(0, 10.0, of=FP32), *twins]).answer is twins[0], "by single probes too"
    for trials in ([plain, busy, slow], [busy, slow, plain]):
        assert standing_of(trials).answer is plain, "in any order, as a page's table has them"


@pytest.mark.parametrize(
    ("after", "gains", "other", "wins"),
    [
        (300, (0.995, 1.003, 1.0), WORKERS, True),
        (490, (0.995, 1.003, 1.0), WORKERS, False),
        (300, (0.97, 0.975, 1.01), WORKERS, False),
        (300, (0.995, 1.003, 1.0), BF16, False),
    ],
    ids=["leaner and as fast", "hardly leaner", "perhaps slower", "learns differently"],
)
def test_what_is_as_fast_wins_if_it_is_clearly_leaner_and_learns_alike(
    after: int, gains: tuple[float, ...], other: Configuration, wins: bool
) -> None:
    slow = of(in_rounds(0, [10.0] * 3, 500 * MIB), FP32)
    lean = of(in_rounds(1, [10.0 * gain for gain in gains], after * MIB), other)
    assert standing_of([slow, lean]).answer is (lean if wins else slow)
    probed = [replace(each, confirmations=()) for each in (slow, lean)]
    assert standing_of(probed).answer is probed[0], "single probes do not show that two are as fast"


def test_the_leader_of_a_running_search_need_not_be_shown_to_be_faster_if_it_learns_alike() -> None:
    slow, fast = trial(0, 10.0, of=FP32, spread=0.3), trial(1, 12.0, of=WORKERS, spread=0.3)
    assert standing_of([slow, fast]).leader is fast
    assert standing_of([slow, fast]).answer is slow
    assert standing_of([slow, of(fast, BF16)]).leader is standing_of([slow, of(fast, BF16)]).answer is slow
    slow, fast = trial(0, 10.0, of=FP32), trial(1, 12.0, of=WORKERS)
    assert standing_of([slow, fast]).answer is fast, "single probes that are surely faster"
    assert standing_of([]).leader is None


def test_what_was_faster_and_could_not_win_is_disqualified_with_its_reason_the_fastest_confirmed_one_first() -> None:
    slow, unsure = rivals(BF16, 0.6, 2.4, 1.2)
    disqualified_reason = replace(of(in_rounds(2, [50.0, 20.0, 35.0]), BF16), disqualified_reason="its loss differs")
    probed = replace(trial(3, 90.0, of=BF16), disqualified_reason="learns as trial 2")
    behind = replace(trial(4, 1.0, of=BF16, confirmed=1.0), disqualified_reason="its loss differs")
    trials = [slow, unsure, disqualified_reason, probed, behind]
    assert standing_of(trials).answer is slow
    told = standing_of(trials).disqualified
    assert [item.number for item, _ in told] == [2, 1, 3]
    assert (told[0][1], told[2][1]) == ("its loss differs", "learns as trial 2")
    assert "cannot be told to be faster" in told[1][1]
    assert standing_of(rivals(BF16, 1.001, 1.004, 0.999)).disqualified == [], "as fast: nothing is lost"
    assert standing_of(rivals(BF16, 1.5, 1.6, 1.4)).disqualified == []


# Against the baseline -------------------------------------------------------------------------------------------


def test_without_pairs_a_speed_up_is_that_of_first_measurements_and_as_wide_as_processes_differ() -> None:
    slow, fast = trial(0, 10.0, spread=0.01), trial(1, 25.0, spread=0.01)
    gain, of_one = standing_of([slow, fast]).gain(fast), slow.samples_per_second
    assert gain is not None
    assert of_one is not None
    assert gain == pytest.approx(2.5)
    assert gain.low < 2.5 < gain.high
    of_processes = 2 * 1.96 * PROCESSES_DIFFER
    assert gain.relative_width == pytest.approx(2**0.5 * math.hypot(of_one.relative_width, of_processes), rel=0.01)
    again = in_rounds(1, [30.0], probed=25.0)
    assert standing_of([slow, again]).gain(again) == pytest.approx(2.5), "one of them alone was measured again"
    itself = standing_of([slow]).gain(slow)
    assert itself is not None
    assert (itself.value, itself.low, itself.high) == (1.0, 1.0, 1.0)


def in_rounds(
    number: int, speeds: Sequence[float], peak_bytes: int = 500 * MIB, probed: float | None = None, **facts: Any
) -> Trial:
    """A trial that was measured again in rounds of these speeds; probed: its probe's speed, if not that of the first."""
    rounds = tuple(completed(configuration(), one, peak_bytes, spread=1e-4, **facts) for one in speeds)
    first = completed(configuration(), probed or speeds[0], peak_bytes, spread=1e-4)
    return replace(trial(number, speeds[0], peak_bytes), measurement=first, confirmations=rounds)


def test_a_speed_up_that_differs_from_measurement_to_measurement_is_as_uncertain_as_that() -> None:
    widths = []
    for speeds in ([20.0, 20.1, 19.9], [20.0, 22.0, 18.0], [20.0, 40.0, 10.0]):
        gain = standing_of([in_rounds(0, [10.0] * 3), in_rounds(1, speeds)]).gain(in_rounds(1, speeds))
        assert gain is not None
        assert gain.low < 2.0 < gain.high
        widths.append(gain.relative_width)
    assert widths[0] < 0.1 < widths[1] < 0.6 < widths[2]


def test_round_by_round_the_quotient_of_two_trials_has_the_interval_of_pairs_else_that_of_the_means() -> None:
    above, below = [20.0, 11.0, 16.0], [10.0, 5.0, 8.0]
    gain, expected = round_ratio(in_rounds(1, above), in_rounds(0, below), SPEED), quotient_interval(above, below)
    assert (gain, gain.low, gain.high) == pytest.approx((expected, expected.low, expected.high), rel=1e-6)
    few = round_ratio(in_rounds(1, above[:2]), in_rounds(0, below[:2]), SPEED)
    assert few == pytest.approx(quotient_interval(above[:2], below[:2]), rel=1e-6)
    one = replace(in_rounds(0, below), confirmations=())
    assert round_ratio(in_rounds(1, above), one, SPEED) == pytest.approx(2.0), "probe by probe"


def test_the_front_holds_what_no_other_beats_in_both_speed_and_memory() -> None:
    trials = [
        trial(0, 10, 500 * MIB),
        trial(1, 30, 900 * MIB),
        trial(2, 20, 500 * MIB),
        trial(3, 15, 700 * MIB),
        trial(4, 5, 100 * MIB),
        Trial(5, configuration(48), ended(Outcome.OUT_OF_MEMORY)),
    ]
    assert [each.number for each in pareto_front(trials)] == [1, 2, 4]
    assert pareto_front([]) == []
