"""Which trial is best, which are rivals, and how much faster than the baseline."""

from dataclasses import replace

import pytest

from autotune.measurement import Outcome
from autotune.objective import best_trial, finalists, pareto_front, speed, speed_up, value
from autotune.trial import Trial
from tests.makers import ALLOWED, MIB, completed, configuration, ended, trial

SPEED = "samples_per_second"


def with_tokens(samples_per_second: float, tokens_in_a_sample: int) -> Trial:
    one = trial(0, samples_per_second)
    steps = tuple(replace(step, tokens=step.samples * tokens_in_a_sample) for step in one.measurement.steps)
    return replace(one, measurement=replace(one.measurement, steps=steps))


def numbers(trials: list[Trial]) -> list[int]:
    return [one.number for one in trials]


# What the study is told -----------------------------------------------------------------------------------------


def test_a_feasible_trial_is_told_its_speed_or_its_peak() -> None:
    one = completed(samples_per_second=10.0, peak_bytes=500 * MIB)
    assert value(one, SPEED, ALLOWED) == pytest.approx(10.0)
    assert value(one, "memory", ALLOWED) == 500 * MIB
    assert value(with_tokens(10.0, 7).measurement, "tokens_per_second", ALLOWED) == pytest.approx(70.0)


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.COMPLETED])
def test_an_infeasible_trial_is_told_the_worst_value(outcome: Outcome) -> None:
    assert value(ended(outcome), SPEED, ALLOWED) == 0.0
    assert value(ended(outcome), "memory", ALLOWED) == ALLOWED


def test_tokens_are_compared_where_they_are_known() -> None:
    assert speed(with_tokens(10.0, 7).measurement, "tokens_per_second") == pytest.approx(70.0)
    assert speed(with_tokens(10.0, 7).measurement, SPEED) == pytest.approx(10.0)
    assert speed(with_tokens(10.0, 0).measurement, "tokens_per_second") == pytest.approx(10.0)


# The best -------------------------------------------------------------------------------------------------------


def test_the_fastest_feasible_trial_is_best() -> None:
    trials = [trial(0, 10), trial(1, 30), trial(2, 20), Trial(3, configuration(48), ended(Outcome.OUT_OF_MEMORY))]
    assert best_trial(trials, SPEED) is trials[1]
    assert best_trial([trials[3]], SPEED) is None
    assert best_trial([], SPEED) is None


def test_a_confirmed_trial_comes_before_a_faster_one_that_is_not() -> None:
    trials = [trial(0, 10, confirmed=10), trial(1, 20, confirmed=19), trial(2, 30)]
    assert best_trial(trials, SPEED) is trials[1]


def test_a_confirmed_trial_is_judged_by_its_confirmation() -> None:
    trials = [trial(0, 30, confirmed=20), trial(1, 29, confirmed=25)]
    assert best_trial(trials, SPEED) is trials[1]


def test_a_finalist_that_failed_its_confirmation_is_out() -> None:
    failed = replace(trial(1, 50), confirmations=(ended(Outcome.OUT_OF_MEMORY),))
    assert best_trial([trial(0, 10), failed, trial(2, 20)], SPEED) is not failed


def test_of_confirmed_trials_within_noise_the_one_with_more_free_memory_is_best() -> None:
    fast = trial(0, 20.0, 800 * MIB, confirmed=20.0, spread=0.02)
    lean = trial(1, 19.9, 300 * MIB, confirmed=19.9, spread=0.02)
    slow = trial(2, 15.0, 100 * MIB, confirmed=15.0, spread=0.02)
    assert best_trial([fast, lean, slow], SPEED) is lean


def test_single_probes_within_noise_are_not_called_equal() -> None:
    fast, lean = trial(0, 20.0, 800 * MIB, spread=0.02), trial(1, 19.9, 300 * MIB, spread=0.02)
    assert best_trial([fast, lean], SPEED) is fast


def test_a_trial_that_ended_early_never_wins() -> None:
    hopeless = trial(1, 30.0, ended_early=True)
    assert best_trial([trial(0, 10.0), hopeless], SPEED).number == 0  # type: ignore[union-attr]
    assert best_trial([hopeless], SPEED) is None
    assert numbers(finalists([trial(0, 10.0), hopeless], SPEED)) == [0]


def test_the_least_memory_wins_at_no_less_than_the_baseline_s_speed() -> None:
    trials = [trial(0, 10, 800 * MIB), trial(1, 5, 100 * MIB), trial(2, 12, 500 * MIB), trial(3, 11, 600 * MIB)]
    assert best_trial(trials, "memory") is trials[2]


def test_the_least_memory_wins_outright_where_the_baseline_does_not_run() -> None:
    trials = [Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY)), trial(1, 5, 100 * MIB), trial(2, 12)]
    assert best_trial(trials, "memory") is trials[1]


# Against the baseline -------------------------------------------------------------------------------------------


def test_the_speed_up_is_a_quotient_with_its_interval() -> None:
    gain, reason = speed_up(trial(1, 25.0, spread=0.01), trial(0, 10.0, spread=0.01), SPEED)
    assert reason == ""
    assert gain is not None
    assert gain == pytest.approx(2.5)
    assert gain.low < 2.5 < gain.high
    assert gain.relative_width == pytest.approx(
        2**0.5 * trial(0, 10.0, spread=0.01).samples_per_second.relative_width,  # type: ignore[union-attr]
        rel=0.01,
    )


def test_the_baseline_is_exactly_as_fast_as_itself() -> None:
    gain, _ = speed_up(trial(0, 10.0), trial(0, 10.0), SPEED)
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (1.0, 1.0, 1.0)


def test_there_is_no_speed_up_over_a_baseline_that_does_not_run_and_the_reason_says_so() -> None:
    baseline = Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY, reason="tried to allocate 2 GiB"))
    gain, reason = speed_up(trial(1), baseline, SPEED)
    assert gain is None
    assert "out_of_memory" in reason
    assert "tried to allocate 2 GiB" in reason


# Rivals ---------------------------------------------------------------------------------------------------------


def test_finalists_are_the_best_and_those_within_noise_of_it() -> None:
    trials = [trial(0, 10), trial(1, 99), trial(2, 100), trial(3, 98), trial(4, 90)]
    assert numbers(finalists(trials, SPEED)) == [2, 1, 3]
    assert numbers(finalists(trials, SPEED, most=2)) == [2, 1]
    assert numbers(finalists(trials[:2], SPEED)) == [1]
    assert finalists([], SPEED) == []


def test_a_wide_interval_makes_more_rivals() -> None:
    assert numbers(finalists([trial(0, 100, spread=0.3), trial(1, 85)], SPEED)) == [0, 1]


def test_once_some_are_confirmed_those_whose_probe_was_faster_are_next() -> None:
    assert numbers(finalists([trial(0, 100, confirmed=50), trial(1, 99), trial(2, 60), trial(3, 40)], SPEED)) == [1, 2]
    assert finalists([trial(0, 100, confirmed=100), trial(1, 99)], SPEED) == []


def test_what_failed_its_confirmation_is_no_finalist_again() -> None:
    failed = replace(trial(0, 100), confirmations=(ended(Outcome.OUT_OF_MEMORY),))
    assert numbers(finalists([failed, trial(1, 50)], SPEED)) == [1]
    assert numbers(finalists([failed, trial(1, 50)], "memory")) == [1]


def test_for_memory_the_leanest_alone_is_confirmed() -> None:
    trials = [trial(0, 10, 800 * MIB), trial(1, 5, 100 * MIB), trial(2, 12, 500 * MIB), trial(3, 11, 600 * MIB)]
    assert numbers(finalists(trials, "memory")) == [2]
    confirmed = [trials[0], trials[1], trial(2, 12, 500 * MIB, confirmed=12), trials[3]]
    assert finalists(confirmed, "memory") == []


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
