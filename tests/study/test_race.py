"""The race of the finalists: who is measured again, in which order, and when it is over."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from autotune.core import Measurement, Outcome, Trial
from autotune.core.time_limit import TimeLimit
from autotune.study.objective import best_trial, quotient
from autotune.study.plan import Plan
from autotune.study.race import last_round, next_round, rotated
from tests.clocks import SimulatedTime
from tests.makers import ALLOWED, MIB, completed, configuration, ended, out_of_memory
from tests.makers import trial as made

SPEED = "samples_per_second"
World = Callable[[Trial, int], Measurement]


def steady(speeds: dict[int, float] | None = None, spread: float = 1e-4) -> World:
    """Each trial as fast as its probe was, or as said, in every round."""

    def world(trial: Trial, _: int) -> Measurement:
        probed = float(trial.measurement.samples_per_second or 0)
        peak = trial.measurement.peak_bytes or 0
        return completed(trial.configuration, (speeds or {}).get(trial.number, probed), peak, spread)

    return world


def restless(spread: float = 0.2, seed: int = 0, speed: float = 10.0) -> World:
    """Every round at another speed, around this trial."""
    chance = random.Random(seed)

    def world(trial: Trial, _: int) -> Measurement:
        return completed(trial.configuration, speed * chance.uniform(1 - spread, 1 + spread))

    return world


def wavering(trial: Trial, round_number: int) -> Measurement:
    """The baseline at 10 samples / second, all others now 15 % above and now 10 % below."""
    return completed(
        trial.configuration, 10 * (1.025 - 0.125 * (-1) ** round_number if trial.number else 1.0), spread=1e-4
    )


def failing(*numbers: int, at: int | None = 1) -> World:
    """These trials run out of memory in this round, or in every one."""

    def world(trial: Trial, round_number: int) -> Measurement:
        failed = trial.number in numbers and at in (None, round_number)
        return out_of_memory(trial.configuration) if failed else steady()(trial, round_number)

    return world


@dataclass(frozen=True)
class OfSeconds(Plan):
    """A plan for a training of this length at any speed."""

    run_s: float = 3600.0

    def run_seconds(self, best: Trial | None) -> float:
        """These seconds."""
        return self.run_s


def confirmed(
    trials: list[Trial],
    world: World | None = None,
    rounds: int = 2,
    objective: str = SPEED,
    time: TimeLimit | None = None,
    compare: Callable[[], None] = lambda: None,
    run_seconds: float = 3600.0,
) -> list[tuple[int, int]]:
    """Confirm the trials in place; the (number, round) of every measurement, in their order."""
    measured: list[tuple[int, int]] = []
    world, time = world or steady(), time or TimeLimit()
    plan = OfSeconds(9, objective, ALLOWED, ALLOWED, time, confirmation_rounds=rounds, run_s=run_seconds)
    while numbers := next_round(trials, plan):
        round_number = last_round(trials) + 1
        for number in rotated(numbers, round_number - 1):
            assert len(measured) < 200, "the confirmation does not end"
            measured.append((number, round_number))
            index = [trial.number for trial in trials].index(number)
            result = replace(world(trials[index], round_number), round=round_number)
            trials[index] = replace(trials[index], confirmations=(*trials[index].confirmations, result))
        compare()
    return measured


def rounds_of(trials: list[Trial]) -> list[int]:
    return [len(trial.confirmations) for trial in trials]


# Who, and in which order ----------------------------------------------------------------------------------------


def test_rivals_and_the_baseline_run_interleaved_rotated_rounds() -> None:
    trials = [made(0, 5.0, probe_seconds=1e3), made(1, 10.0), made(2, 10.0)]
    measured = confirmed(trials, restless(0.02), run_seconds=1e6)
    assert measured[:6] == [(1, 1), (2, 1), (0, 1), (2, 2), (0, 2), (1, 2)]
    assert all(trial.confirmed for trial in trials)


def test_no_rival_always_runs_on_the_warmer_machine() -> None:
    assert [rotated([1, 2, 3], by) for by in range(4)] == [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]
    assert rotated([], 2) == []


def test_trials_far_behind_ended_early_or_barred_are_not_confirmed() -> None:
    trials = [
        made(0, 5.0),
        made(1, 10.0),
        made(2, 7.0),
        made(3, 11.0, ended_early=True),
        replace(made(4, 12.0), disqualified_reason="its loss differs from the baseline's"),
        Trial(5, configuration(), ended(Outcome.OUT_OF_MEMORY)),
    ]
    assert {number for number, _ in confirmed(trials)} == {0, 1}


def test_a_baseline_without_a_rival_is_not_confirmed_against_nobody() -> None:
    assert confirmed([made(0, 10.0), made(1, 5.0)]) == []


def test_a_rival_that_falls_out_leaves_the_baseline_no_further_round() -> None:
    trials = [made(0, 10.0), made(1, 10.2)]
    confirmed(trials, steady({1: 5.0}), rounds=3)
    assert rounds_of(trials) == [1, 1]


def test_a_baseline_that_does_not_run_is_not_tried_again() -> None:
    trials = [Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY)), made(1, 10.0)]
    assert confirmed(trials) == [(1, 1), (1, 2)]


def test_without_rounds_or_without_anything_feasible_nothing_is_confirmed() -> None:
    assert confirmed([made(0), made(1)], rounds=0) == []
    assert confirmed([Trial(0, configuration(), ended(Outcome.CRASHED))]) == []
    assert confirmed([]) == []


# The race -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_rivals_that_surely_differ_have_no_more_rounds_than_needed(rounds: int) -> None:
    trials = [made(0, 5.0), made(1, 10.0)]
    confirmed(trials, rounds=rounds)
    assert rounds_of(trials) == [rounds, rounds]


def test_who_is_surely_slower_than_the_leader_runs_no_further_round() -> None:
    trials = [made(0, 5.0), made(1, 10.0), made(2, 10.0), made(3, 10.0)]
    confirmed(trials, steady({1: 10.0, 2: 9.95, 3: 7.0}), rounds=3)
    assert rounds_of(trials)[0] == rounds_of(trials)[1] == 3
    assert rounds_of(trials)[3] == 1
    assert best_trial(trials, SPEED) is trials[1]


def test_what_can_win_less_than_its_next_round_costs_runs_no_further_round() -> None:
    def rounds_within(run_seconds: float) -> int:
        trials = [made(0, 5.0, probe_seconds=1e3), made(1, 10.0), made(2, 10.0)]
        confirmed(trials, steady({1: 10.0, 2: 9.9}), rounds=3, run_seconds=run_seconds)
        return rounds_of(trials)[2]

    assert rounds_within(60.0) == 1
    assert rounds_within(1e6) > 1


def test_rivals_that_are_equal_end_the_race_and_those_that_stay_uncertain_run_twice_as_many_rounds() -> None:
    equal = [made(0, 5.0, probe_seconds=1e4), made(1, 10.0), made(2, 10.0)]
    confirmed(equal, steady({0: 5.0, 1: 10.0, 2: 10.01}, spread=1e-5), rounds=4, run_seconds=1e9)
    assert max(rounds_of(equal)) == 6
    uncertain = [made(0, 5.0, probe_seconds=1e6), made(1, 10.0), made(2, 10.0)]
    confirmed(uncertain, restless(), rounds=3, run_seconds=1e9)
    assert max(rounds_of(uncertain)) == 6


def test_it_is_open_whether_the_leader_is_faster_than_the_baseline() -> None:
    trials = [made(0, 10.0, probe_seconds=1e6), made(1, 10.5)]
    confirmed(trials, wavering, rounds=3)
    assert rounds_of(trials) == [6, 6]


def test_further_rounds_end_when_they_have_taken_as_long_as_the_probes() -> None:
    trials = [made(0, 10.0, probe_seconds=60.0), made(1, 10.0, probe_seconds=60.0)]

    def slow(trial: Trial, round_number: int) -> Measurement:
        return replace(wavering(trial, round_number), probe_seconds=25.0)

    confirmed(trials, slow, rounds=2)
    assert rounds_of(trials) == [3, 3], "150 seconds of rounds after 120 of probes"


def test_a_round_that_was_faster_for_all_does_not_make_who_left_after_it_the_winner() -> None:
    def world(trial: Trial, round_number: int) -> Measurement:
        rate = {0: 5.0, 1: 10.0, 2: 9.0}[trial.number] * (1.5 if round_number == 1 else 1.0)
        return completed(trial.configuration, rate, spread=1e-4)

    trials = [made(0, 5.0), made(1, 10.0), made(2, 9.8)]
    confirmed(trials, world, rounds=3)
    assert rounds_of(trials) == [3, 3, 1]
    assert float(trials[2].final.samples_per_second or 0) > float(trials[1].final.samples_per_second or 0)
    assert best_trial(trials, SPEED) is trials[1]
    assert quotient(trials[1], trials[2], SPEED).value == pytest.approx(10 / 9, rel=1e-3)


# What comes next ------------------------------------------------------------------------------------------------


def test_a_finalist_that_fails_gives_way_to_the_next_and_is_not_tried_again() -> None:
    trials = [made(0, 1.0), made(1, 80.0), made(2, 60.0), made(3, 40.0), made(4, 20.0)]
    measured = confirmed(trials, failing(1, 2, at=None))
    assert rounds_of(trials)[1:4] == [1, 1, 2]
    assert len(measured) == len(set(measured))
    assert best_trial(trials, SPEED) is trials[3]


def test_one_that_fails_in_a_later_round_fails() -> None:
    trials = [made(0, 1.0), made(1, 80.0), made(2, 60.0)]
    confirmed(trials, failing(1, at=2))
    assert not trials[1].feasible
    assert best_trial(trials, SPEED) is trials[2]
    assert rounds_of(trials)[2] == 2


def test_who_is_barred_by_the_losses_of_a_round_leaves_the_race_and_the_next_takes_its_place() -> None:
    trials = [made(0, 1.0), made(1, 80.0), made(2, 60.0)]

    def compare() -> None:
        trials[1] = replace(trials[1], disqualified_reason="it learns nothing")

    confirmed(trials, compare=compare)
    assert rounds_of(trials)[1:] == [1, 2]
    assert best_trial(trials, SPEED) is trials[2]


@pytest.mark.parametrize("objective", [SPEED, "memory"])
def test_where_every_confirmation_fails_it_ends(objective: str) -> None:
    trials = [made(number, 10.0 + number, (9 - number) * 100 * MIB) for number in range(6)]
    measured = confirmed(trials, failing(*range(6), at=None), objective=objective)
    assert len(measured) == len(set(measured))
    assert max(rounds_of(trials)) == 1


def test_the_leanest_that_fails_gives_way_to_the_next_leanest() -> None:
    trials = [Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY))]
    trials += [made(number, 10.0, number * 100 * MIB) for number in (1, 2, 3)]
    confirmed(trials, failing(1), objective="memory")
    assert rounds_of(trials) == [0, 1, 2, 0]
    assert best_trial(trials, "memory") is trials[2]


def test_a_finalist_that_comes_out_slower_is_measured_against_those_behind_it() -> None:
    trials = [made(0, 1.0, probe_seconds=1e3), made(1, 50.0), made(2, 30.0), made(3, 5.0)]
    confirmed(trials, steady({1: 10.0}))
    assert rounds_of(trials)[2:] == [2, 0]
    assert best_trial(trials, SPEED) is trials[2]


# With little time ------------------------------------------------------------------------------------------------


def in_seconds(
    seconds: float, trials: list[Trial], world: World | None = None, rounds: int = 3
) -> list[tuple[int, int]]:
    """Confirm in so many seconds, of which every measurement takes ten."""
    time = SimulatedTime(seconds)

    def measure(trial: Trial, round_number: int) -> Measurement:
        time.spend(10.0)
        return replace((world or steady())(trial, round_number), probe_seconds=10.0)

    measured = confirmed(trials, measure, rounds, time=time)
    assert time.passed[0] <= seconds
    return measured


def rivals(*speeds: float) -> list[Trial]:
    """Trials of these speeds, whose probes took ten seconds, nearly none of them in steps."""
    return [made(number, rate, probe_seconds=10.0) for number, rate in enumerate(speeds)]


@pytest.mark.parametrize(
    ("seconds", "in_the_first_round", "rounds"),
    [(19, 0, 0), (21, 2, 1), (31, 3, 1), (61, 3, 2), (131, 4, 3), (161, 5, 3)],
)
def test_there_are_as_many_finalists_and_rounds_as_there_is_time_for(
    seconds: float, in_the_first_round: int, rounds: int
) -> None:
    trials = rivals(5e6, 10e6, 10e6, 10e6, 10e6)
    measured = in_seconds(seconds, trials)
    assert sum(round_number == 1 for _, round_number in measured) == in_the_first_round
    assert max(rounds_of(trials)) >= rounds


# Again ----------------------------------------------------------------------------------------------------------


def test_what_is_confirmed_is_not_confirmed_again() -> None:
    trials = [made(0, 5.0), made(1, 10.0)]
    confirmed(trials)
    assert confirmed(trials) == []
