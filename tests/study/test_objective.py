"""Which trial is best, which are rivals, and how much faster than the baseline."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.core import Configuration, Interval, Measurement, Outcome, Trial
from autotune.core.interval import quotient_interval
from autotune.study.certainty import speedup_gap
from autotune.study.objective import (
    best_trial,
    disqualified,
    is_shown,
    leader,
    pareto_front,
    round_ratio,
    speed,
    speed_up,
)
from autotune.study.plan import Plan
from tests.makers import ALLOWED, MIB, completed, configuration, ended, trial

SPEED = "samples_per_second"
PLAN = Plan(n_trials=1, objective=SPEED, allowed_bytes=ALLOWED)
FAST = configuration(16)


def with_tokens(samples_per_second: float, tokens_in_a_sample: int) -> Trial:
    one = trial(0, samples_per_second)
    steps = tuple(replace(step, tokens=step.samples * tokens_in_a_sample) for step in one.measurement.steps)
    return replace(one, measurement=replace(one.measurement, steps=steps))


def numbers(trials: list[Trial]) -> list[int]:
    return [one.number for one in trials]


# Score of a measurement ----------------------------------------------------------------------------------------


def test_the_score_of_what_fits_is_its_speed() -> None:
    assert PLAN.score(completed(samples_per_second=10.0)) == pytest.approx(10.0)
    assert replace(PLAN, objective="tokens_per_second").score(with_tokens(10.0, 7).measurement) == pytest.approx(70.0)


@pytest.mark.parametrize("outcome", [item for item in Outcome if item is not Outcome.COMPLETED])
def test_the_score_of_what_does_not_fit_is_0(outcome: Outcome) -> None:
    assert PLAN.score(ended(outcome)) == 0.0


def test_tokens_are_compared_where_they_are_known() -> None:
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


def test_two_measurements_of_each_side_by_side_in_time_prove_how_much_faster_a_trial_is() -> None:
    slow, fast = trial(0, 10.0, confirmed=10.0), trial(1, 20.0, of=FAST, confirmed=20.0)
    assert is_shown(at(fast, 10, 30, 900), at(slow, 0, 20, 500))
    assert not is_shown(at(fast, 10, 300, 900), at(slow, 0, 20, 500)), (
        "one of its measurements is beside the baseline's"
    )
    assert not is_shown(at(fast, 10, 30, 50, device="a"), at(slow, 0, 20, 40, device="b"))
    assert not is_shown(trial(1, 20.0, of=FAST), slow)


def test_of_the_baseline_there_is_nothing_to_prove_and_without_one_that_runs_a_second_measurement_counts() -> None:
    assert is_shown(trial(0), trial(0))
    for baseline in (None, Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY))):
        assert not is_shown(trial(1, of=FAST), baseline)
        assert is_shown(trial(1, of=FAST, confirmed=10.0), baseline)
    failed = replace(trial(1, 20.0, confirmed=20.0), confirmations=(ended(Outcome.OUT_OF_MEMORY, round=1),) * 2)
    assert not is_shown(failed, trial(0, confirmed=10.0))


# The best -------------------------------------------------------------------------------------------------------


def test_the_fastest_feasible_trial_is_best() -> None:
    trials = [trial(0, 10), trial(1, 30), trial(2, 20), Trial(3, configuration(48), ended(Outcome.OUT_OF_MEMORY))]
    assert best_trial(trials, SPEED) is trials[1]
    assert best_trial([trials[3]], SPEED) is None
    assert best_trial([], SPEED) is None


def test_a_proven_trial_comes_before_a_faster_one_that_is_not() -> None:
    trials = [trial(0, 10, confirmed=10), trial(1, 20, confirmed=19), trial(2, 30)]
    assert best_trial(trials, SPEED) is trials[1]


def test_a_probe_that_was_lucky_is_outweighed_by_what_is_measured_again() -> None:
    trials = [trial(0, 30, confirmed=30), trial(1, 33, confirmed=29)]
    assert best_trial(trials, SPEED) is trials[0]


def test_what_failed_when_it_was_measured_again_is_out() -> None:
    failed = replace(trial(1, 50), confirmations=(ended(Outcome.OUT_OF_MEMORY),))
    assert best_trial([trial(0, 10), failed, trial(2, 20)], SPEED) is not failed


def test_of_trials_within_noise_with_as_many_changes_the_one_with_more_free_memory_is_best() -> None:
    slow = trial(0, 15.0, 100 * MIB, confirmed=15.0, spread=0.02)
    fast = trial(1, 20.0, 800 * MIB, confirmed=20.0, spread=0.02)
    lean = trial(2, 19.9, 300 * MIB, confirmed=19.9, spread=0.02)
    assert best_trial([slow, fast, lean], SPEED) is lean


def test_an_interval_too_wide_to_tell_is_no_proof_that_two_are_equal() -> None:
    slow = in_rounds(0, [20.0, 21.0, 19.0])
    fast = in_rounds(1, [100.0, 60.0, 80.0], 800 * MIB)
    lean = in_rounds(2, [64.0, 70.0, 58.0], 300 * MIB)
    assert speed_up(fast, lean, SPEED).low < 1  # type: ignore[union-attr]
    assert best_trial([slow, fast, lean], SPEED) is fast


def test_a_trial_that_ended_early_never_wins() -> None:
    hopeless = trial(1, 30.0, ended_early=True)
    assert best_trial([trial(0, 10.0), hopeless], SPEED).number == 0  # type: ignore[union-attr]
    assert best_trial([hopeless], SPEED) is None


def test_a_barred_trial_never_wins() -> None:
    disqualified_reason = replace(
        trial(1, 30.0, 100 * MIB, confirmed=30.0), disqualified_reason="its loss differs from the baseline's"
    )
    trials = [trial(0, 10.0), disqualified_reason, trial(2, 20.0)]
    assert best_trial(trials, SPEED) is trials[2], "that it was measured again puts no other behind"
    assert best_trial([disqualified_reason], SPEED) is None


def test_what_fitted_only_because_the_allocator_tried_again_never_wins() -> None:
    tight = trial(1, 30.0, allocator_retries=3)
    assert best_trial([trial(0, 10.0), tight], SPEED).number == 0  # type: ignore[union-attr]
    assert PLAN.score(tight.measurement) == 0.0


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
        (
            replace(BF16, settings=(*BF16.settings[:1], ("precision", "unheard_of"), *BF16.settings[2:])),
            (0.6, 2.4, 1.2),
            False,
        ),
    ],
    ids=["open", "as fast", "surely faster", "open, learns alike", "surely faster, learns alike", "of another version"],
)
def test_a_configuration_wins_only_if_it_is_surely_faster(
    other: Configuration, gains: tuple[float, ...], wins: bool
) -> None:
    trials = rivals(other, *gains)
    best = best_trial(trials, SPEED)
    assert best is not None
    assert best.number == int(wins)
    gain = speed_up(trials[1], trials[0], SPEED)
    assert gain is not None
    assert gain > 1


@pytest.mark.parametrize("other", [BF16, WORKERS])
def test_a_single_probe_wins_only_if_it_is_surely_faster(other: Configuration) -> None:
    slow, fast = trial(0, 10.0, of=FP32, spread=0.3), trial(1, 12.0, of=other, spread=0.3)
    assert best_trial([slow, fast], SPEED) is slow
    sure = trial(1, 12.0, of=other, spread=0.01)
    assert best_trial([trial(0, 10.0, of=FP32, spread=0.01), sure], SPEED) is sure


def test_of_what_cannot_be_told_apart_the_one_with_the_fewest_changes_wins() -> None:
    slow = of(in_rounds(0, [10.0, 10.1, 9.9]), FP32)
    plain = of(in_rounds(1, [19.8, 20.2, 19.9], 800 * MIB), BF16)
    busy = of(in_rounds(2, [19.9, 20.1, 20.0], 300 * MIB), replace(BF16, settings=(*BF16.settings, ("workers", 4))))
    assert best_trial([slow, plain, busy], SPEED) is plain, "four workers that bring nothing which was shown"
    told = of(in_rounds(2, [20.6, 21.0, 20.7]), busy.configuration)
    assert best_trial([slow, plain, told], SPEED) is told
    twins = [trial(1, 19.97, 800 * MIB, of=BF16), trial(2, 20.0, 300 * MIB, of=busy.configuration)]
    assert best_trial([trial(0, 10.0, of=FP32), *twins], SPEED) is twins[0], "by single probes too"
    for trials in ([plain, busy, slow], [busy, slow, plain]):
        assert best_trial(trials, SPEED) is plain, "in any order, as a page's table has them"


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
    assert best_trial([slow, lean], SPEED) is (lean if wins else slow)
    probed = [replace(each, confirmations=()) for each in (slow, lean)]
    assert best_trial(probed, SPEED) is probed[0], "single probes do not show that two are as fast"


def test_the_leader_of_a_running_search_need_not_be_shown_to_be_faster_if_it_learns_alike() -> None:
    slow, fast = trial(0, 10.0, of=FP32, spread=0.3), trial(1, 12.0, of=WORKERS, spread=0.3)
    assert leader([slow, fast], SPEED) is fast
    assert best_trial([slow, fast], SPEED) is slow
    assert leader([slow, of(fast, BF16)], SPEED) is slow
    assert leader([], SPEED) is None


def test_what_learns_differently_has_nothing_to_prove_where_the_baseline_does_not_run() -> None:
    _, fast = rivals(BF16, 0.6, 2.4, 1.2)
    lost = Trial(0, FP32, ended(Outcome.OUT_OF_MEMORY))
    assert best_trial([lost, fast], SPEED) is fast


def test_what_was_faster_and_could_not_win_is_disqualified_with_its_reason_the_fastest_confirmed_one_first() -> None:
    slow, unsure = rivals(BF16, 0.6, 2.4, 1.2)
    disqualified_reason = replace(of(in_rounds(2, [50.0, 20.0, 35.0]), BF16), disqualified_reason="its loss differs")
    probed = replace(trial(3, 90.0, of=BF16), disqualified_reason="learns as trial 2")
    behind = replace(trial(4, 1.0, of=BF16, confirmed=1.0), disqualified_reason="its loss differs")
    trials = [slow, unsure, disqualified_reason, probed, behind]
    assert best_trial(trials, SPEED) is slow
    told = disqualified(trials, SPEED)
    assert [item.number for item, _ in told] == [2, 1, 3]
    assert (told[0][1], told[2][1]) == ("its loss differs", "learns as trial 2")
    assert "cannot be told to be faster" in told[1][1]
    assert disqualified(rivals(BF16, 1.001, 1.004, 0.999), SPEED) == [], "as fast: nothing is lost"
    assert disqualified(rivals(BF16, 1.5, 1.6, 1.4), SPEED) == []


# Against the baseline -------------------------------------------------------------------------------------------


def test_the_speed_up_is_a_quotient_with_its_interval() -> None:
    gain = speed_up(trial(1, 25.0, spread=0.01), trial(0, 10.0, spread=0.01), SPEED)
    assert gain is not None
    assert gain == pytest.approx(2.5)
    assert gain.low < 2.5 < gain.high
    assert gain.relative_width == pytest.approx(
        2**0.5 * trial(0, 10.0, spread=0.01).samples_per_second.relative_width,  # type: ignore[union-attr]
        rel=0.01,
    )


def in_rounds(
    number: int, speeds: Sequence[float], peak_bytes: int = 500 * MIB, probed: float | None = None, **facts: Any
) -> Trial:
    """A trial that was measured again in rounds of these speeds; probed: its probe's speed, if not that of the first."""
    rounds = tuple(completed(configuration(), one, peak_bytes, spread=1e-4, **facts) for one in speeds)
    first = completed(configuration(), probed or speeds[0], peak_bytes, spread=1e-4)
    return replace(trial(number, speeds[0], peak_bytes), measurement=first, confirmations=rounds)


def test_a_machine_that_wanders_is_taken_out_of_the_speed_up_and_widens_its_interval() -> None:
    def gain(speeds: Sequence[float]) -> Interval:
        """A search that measures the baseline and a trial that is twice as fast in turns, on a machine of these speeds."""
        slow, fast = (
            at(in_rounds(number, own[1:], probed=own[0]), *range(10 * number, 100, 20))
            for number, own in enumerate(([10 * each for each in speeds[::2]], [20 * each for each in speeds[1::2]]))
        )
        shown = speed_up(fast, slow, SPEED)
        assert shown is not None
        return shown

    still, wandering = gain([1.0] * 10), gain([1.0, 0.98, 0.95, 0.92, 0.9, 0.9, 0.92, 0.95, 0.98, 1.0])
    for each in (still, wandering):
        assert each.low < 2.0 < each.high
    assert still.relative_width < wandering.relative_width < 0.1


def test_a_speed_up_that_differs_from_measurement_to_measurement_is_as_uncertain_as_that() -> None:
    widths = []
    for speeds in ([20.0, 20.1, 19.9], [20.0, 22.0, 18.0], [20.0, 40.0, 10.0]):
        gain = speed_up(in_rounds(1, speeds), in_rounds(0, [10.0] * 3), SPEED)
        assert gain is not None
        assert gain.low < 2.0 < gain.high
        widths.append(gain.relative_width)
    assert widths[0] < 0.1 < widths[1] < 0.5 < widths[2]


def test_round_by_round_the_quotient_of_two_trials_has_the_interval_of_pairs_else_that_of_the_means() -> None:
    above, below = [20.0, 11.0, 16.0], [10.0, 5.0, 8.0]
    gain, expected = round_ratio(in_rounds(1, above), in_rounds(0, below), SPEED), quotient_interval(above, below)
    assert (gain, gain.low, gain.high) == pytest.approx((expected, expected.low, expected.high), rel=1e-6)
    few = round_ratio(in_rounds(1, above[:2]), in_rounds(0, below[:2]), SPEED)
    assert few == pytest.approx(quotient_interval(above[:2], below[:2]), rel=1e-6)
    one = replace(in_rounds(0, below), confirmations=())
    assert round_ratio(in_rounds(1, above), one, SPEED) == pytest.approx(2.0), "probe by probe"


def test_longer_samples_make_no_trial_slower() -> None:
    def of_length(tokens: int, one: Trial) -> Trial:
        def told(measurement: Measurement) -> Measurement:
            count = {"tokens": 2 * tokens, "non_padding_tokens": tokens}
            return replace(measurement, steps=tuple(replace(step, **count) for step in measurement.steps))

        probe, *rounds = map(told, one.measurements)
        return replace(one, measurement=probe, confirmations=tuple(rounds))

    best, baseline = of_length(700, in_rounds(1, [20.0] * 3)), of_length(1400, in_rounds(0, [10.0] * 3))
    assert speed_up(best, baseline, SPEED) == pytest.approx(1.0)


def test_the_baseline_is_exactly_as_fast_as_itself() -> None:
    gain = speed_up(trial(0, 10.0), trial(0, 10.0), SPEED)
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (1.0, 1.0, 1.0)


def test_there_is_no_speed_up_over_a_baseline_that_does_not_run_and_the_reason_says_so() -> None:
    baseline = Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY, reason="tried to allocate 2 GiB"))
    assert speed_up(trial(1), baseline, SPEED) is None
    gap = speedup_gap([baseline, trial(1)], SPEED)
    assert gap is not None
    assert gap.text == "the baseline does not run here: out_of_memory (tried to allocate 2 GiB)"


def test_the_front_holds_what_no_other_beats_in_both_speed_and_memory() -> None:
    trials = [
        trial(0, 10, 500 * MIB),
        trial(1, 30, 900 * MIB),
        trial(2, 20, 500 * MIB),
        trial(3, 15, 700 * MIB),
        trial(4, 5, 100 * MIB),
        Trial(5, configuration(48), ended(Outcome.OUT_OF_MEMORY)),
    ]
    assert numbers(pareto_front(trials)) == [1, 2, 4]
    assert pareto_front([]) == []
