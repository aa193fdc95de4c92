"""Confirmation: who is measured again, in which order, how often, and when it is enough."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from autotune.core import Measurement, Outcome, Trial
from autotune.study import confirm as confirmation
from autotune.study.confirm import EQUAL, FURTHER, MOST_GROUPS, confirm, is_settled, rotated
from autotune.study.objective import SPEED_UP_WIDTH, best_trial, speed_up
from tests.clocks import SimulatedTime
from tests.makers import MIB, completed, configuration, ended, out_of_memory, trial

SPEED = "samples_per_second"
World = Callable[[Trial, int], Measurement]


def steady(speeds: dict[int, float] | None = None, spread: float = 1e-4) -> World:
    """Each trial as fast as its probe was, or as said, in every round."""

    def world(one: Trial, _: int) -> Measurement:
        probed = float(one.measurement.samples_per_second or 0)
        peak = one.measurement.peak_bytes or 0
        return completed(one.configuration, (speeds or {}).get(one.number, probed), peak, spread)

    return world


def restless(spread: float = 0.2, seed: int = 0, speed: float = 10.0) -> World:
    """Every round at another speed, around this one."""
    chance = random.Random(seed)

    def world(one: Trial, _: int) -> Measurement:
        return completed(one.configuration, speed * chance.uniform(1 - spread, 1 + spread))

    return world


def failing(*numbers: int, at: int = 1) -> World:
    """These trials run out of memory in this round."""

    def world(one: Trial, one_round: int) -> Measurement:
        failed = one.number in numbers and one_round == at
        return out_of_memory(one.configuration) if failed else steady()(one, one_round)

    return world


def confirmed(
    trials: list[Trial],
    world: World | None = None,
    rounds: int = 2,
    objective: str = SPEED,
    seconds_left: Callable[[], float] = lambda: math.inf,
    spare_s: float = 0.0,
) -> list[tuple[int, int]]:
    """Confirm the trials in place; the (number, round) of every measurement, in their order."""
    asked: list[tuple[int, int]] = []
    world = world or steady()

    def measure(one: Trial, one_round: int) -> Measurement:
        asked.append((one.number, one_round))
        assert len(asked) < 200, "the confirmation does not end"
        return world(one, one_round)

    confirm(trials, objective, rounds, measure, seconds_left, lambda: spare_s)
    return asked


def rounds_of(trials: list[Trial]) -> list[int]:
    return [len(one.confirmations) for one in trials]


# Who, and in which order ----------------------------------------------------------------------------------------


def test_rivals_and_the_baseline_are_confirmed_in_interleaved_rotated_rounds() -> None:
    trials = [trial(0, 5.0), trial(1, 10.0), trial(2, 10.0)]
    assert confirmed(trials) == [(1, 1), (2, 1), (0, 1), (2, 2), (0, 2), (1, 2)]
    assert all(one.confirmed for one in trials)


def test_no_rival_always_runs_on_the_warmer_machine() -> None:
    assert [rotated([1, 2, 3], by) for by in range(4)] == [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]
    assert rotated([], 2) == []


def test_trials_far_behind_ended_early_or_barred_are_not_confirmed() -> None:
    trials = [
        trial(0, 5.0),
        trial(1, 10.0),
        trial(2, 7.0),
        trial(3, 11.0, ended_early=True),
        replace(trial(4, 12.0), disqualified_reason="its loss differs from the baseline's"),
        Trial(5, configuration(), ended(Outcome.OUT_OF_MEMORY)),
    ]
    assert {number for number, _ in confirmed(trials)} == {0, 1}


def test_the_baseline_alone_is_confirmed_where_it_is_best() -> None:
    assert confirmed([trial(0, 10.0), trial(1, 5.0)]) == [(0, 1), (0, 2)]


def test_a_baseline_that_does_not_run_is_not_tried_again() -> None:
    trials = [Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY)), trial(1, 10.0)]
    assert confirmed(trials) == [(1, 1), (1, 2)]


def test_without_rounds_or_without_anything_feasible_nothing_is_confirmed() -> None:
    assert confirmed([trial(0), trial(1)], rounds=0) == []
    assert confirmed([Trial(0, configuration(), ended(Outcome.CRASHED))]) == []
    assert confirmed([]) == []


# How often ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_rivals_that_surely_differ_have_no_more_rounds_than_needed(rounds: int) -> None:
    trials = [trial(0, 5.0), trial(1, 10.0)]
    confirmed(trials, rounds=rounds)
    assert rounds_of(trials) == [rounds, rounds]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_rivals_that_stay_uncertain_have_up_to_twice_as_many_rounds(rounds: int) -> None:
    trials = [trial(0, 10.0), trial(1, 10.0)]
    asked = confirmed(trials, restless(), rounds=rounds)
    assert rounds_of(trials) == [2 * rounds, 2 * rounds]
    assert len(asked) == len(set(asked)) == 4 * rounds


def test_one_uncertain_rival_gives_all_a_further_round_so_that_they_stay_pairs() -> None:
    trials = [trial(0, 5.0), trial(1, 10.0)]

    def world(one: Trial, one_round: int) -> Measurement:
        off = one.number == 1 and one_round == 1
        return completed(one.configuration, (9.0 if off else 10.0) * (0.5 if one.number == 0 else 1.0), spread=1e-4)

    confirmed(trials, world, rounds=3)
    assert rounds_of(trials) == [6, 6]


def jittered(ratio: float, jitter: Callable[[int], float]) -> World:
    """The baseline at 10 samples / second, all others `ratio` times as fast, more or less by the round's jitter."""

    def world(one: Trial, one_round: int) -> Measurement:
        return completed(one.configuration, 10 * (ratio + jitter(one_round) if one.number else 1.0), spread=1e-4)

    return world


def test_a_rival_that_is_surely_slower_needs_no_exact_speed() -> None:
    trials = [trial(0, 5.0), trial(1, 10.0), trial(2, 9.9)]

    def world(one: Trial, one_round: int) -> Measurement:
        mood = 1 + 0.3 * (one_round % 2)
        return completed(one.configuration, {0: 5.0, 1: 10.0, 2: 9.0}[one.number] * mood, spread=1e-4)

    confirmed(trials, world, rounds=3)
    assert rounds_of(trials) == [3, 3, 3], "every round at another speed, but all by the same share"
    assert trials[1].final.samples_per_second.relative_width > 0.2  # type: ignore[union-attr]


def test_further_rounds_end_once_rivals_are_known_to_be_equal() -> None:
    trials = [trial(0, 5.0), trial(1, 10.0), trial(2, 10.0)]

    def world(one: Trial, one_round: int) -> Measurement:
        jitter = 0.02 * (one_round in (1, 2)) * (-1) ** one_round
        return completed(one.configuration, {0: 5.0, 1: 10.0, 2: 10.0 + 0.1 * jitter}[one.number], spread=1e-4)

    confirmed(trials, world, rounds=3)
    assert rounds_of(trials) == [3, 3, 3]
    undecided = [trial(0, 5.0), trial(1, 10.0), trial(2, 10.0)]
    confirmed(undecided, lambda one, n: world(one, n) if one.number < 2 else restless(seed=n)(one, n), rounds=3)
    assert rounds_of(undecided) == [6, 6, 6]


def test_further_rounds_end_once_the_speed_up_is_known() -> None:
    first_off = jittered(2.0, lambda one_round: 0.12 if one_round == 1 else 0.0)
    trials = [trial(0, 10.0), trial(1, 20.0)]
    confirmed(trials, first_off, rounds=3)
    up, _ = speed_up(trials[1], trials[0], SPEED)
    assert up is not None
    assert 3 < len(trials[1].confirmations) < 6
    assert up.relative_width <= SPEED_UP_WIDTH
    assert EQUAL < SPEED_UP_WIDTH


def test_no_further_round_begins_when_the_group_has_taken_as_long_as_the_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = [trial(0, 10.0), trial(1, 10.0)]
    probed_s = sum(one.measurement.probe_seconds for one in trials)
    seconds = count(0.0, 0.6 * FURTHER * probed_s)
    monkeypatch.setattr(confirmation, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(seconds))}))
    confirmed(trials, restless(), rounds=2)
    # 0 at the beginning, 0.6 before the third round, 1.2 before the fourth.
    assert rounds_of(trials) == [3, 3]


def test_a_rival_that_failed_keeps_no_other_waiting_for_an_exact_speed() -> None:
    trials = [trial(0, 5.0), trial(1, 10.0)]
    confirmed(trials, failing(1))
    assert rounds_of(trials) == [2, 1]


# What comes next ------------------------------------------------------------------------------------------------


def test_a_finalist_that_fails_gives_way_to_the_next_and_is_not_tried_again() -> None:
    trials = [trial(0, 1.0), trial(1, 80.0), trial(2, 60.0), trial(3, 40.0), trial(4, 20.0)]
    asked = confirmed(trials, failing(1, 2))
    assert rounds_of(trials) == [2, 1, 1, 2, 2]
    assert len(asked) == len(set(asked))
    assert best_trial(trials, SPEED) is trials[3]


def test_one_that_fails_in_a_later_round_fails() -> None:
    trials = [trial(0, 1.0), trial(1, 80.0), trial(2, 60.0)]
    confirmed(trials, failing(1, at=2))
    assert rounds_of(trials) == [2, 2, 2]
    assert not trials[1].feasible
    assert best_trial(trials, SPEED) is trials[2]


@pytest.mark.parametrize("objective", [SPEED, "memory"])
def test_where_every_confirmation_fails_it_ends(objective: str) -> None:
    trials = [trial(number, 10.0 - number, (9 - number) * 100 * MIB) for number in range(6)]
    asked = confirmed(trials, failing(*range(6)), objective=objective)
    assert len(asked) == len(set(asked))
    assert max(rounds_of(trials)) == 1


def test_no_more_than_a_few_groups_are_confirmed() -> None:
    trials = [trial(number, 100.0 * 0.8**number) for number in range(10)]
    confirmed(trials, failing(*range(10)))
    assert sum(map(bool, rounds_of(trials))) == MOST_GROUPS


def test_the_leanest_that_fails_gives_way_to_the_next_leanest() -> None:
    trials = [Trial(0, configuration(), ended(Outcome.OUT_OF_MEMORY))]
    trials += [trial(number, 10.0, number * 100 * MIB) for number in (1, 2, 3)]
    confirmed(trials, failing(1), objective="memory")
    assert rounds_of(trials) == [0, 1, 2, 0]
    assert best_trial(trials, "memory") is trials[2]


def test_a_finalist_that_comes_out_slower_is_measured_against_those_behind_it() -> None:
    trials = [trial(0, 1.0), trial(1, 50.0), trial(2, 30.0), trial(3, 5.0)]
    confirmed(trials, steady({1: 10.0}))
    assert rounds_of(trials) == [2, 2, 2, 0]
    assert best_trial(trials, SPEED) is trials[2]


# With little time ------------------------------------------------------------------------------------------------


def in_seconds(
    seconds: float, trials: list[Trial], world: World | None = None, rounds: int = 3, spare_s: float = 0.0
) -> list[tuple[int, int]]:
    """Confirm in so many seconds, of which every measurement takes ten."""
    time = SimulatedTime(seconds)

    def measured(one: Trial, one_round: int) -> Measurement:
        time.spend(10.0)
        return replace((world or steady())(one, one_round), probe_seconds=10.0)

    asked = confirmed(trials, measured, rounds, seconds_left=time.seconds_left, spare_s=spare_s)
    assert time.passed[0] <= seconds
    return asked


def rivals(*speeds: float) -> list[Trial]:
    """Trials of these speeds, whose probes took ten seconds, nearly none of them in steps."""
    return [trial(number, rate, probe_seconds=10.0) for number, rate in enumerate(speeds)]


@pytest.mark.parametrize(
    ("seconds", "confirmed_rounds"),
    [
        (19, [0, 0, 0, 0, 0]),  # not even the best and the baseline
        (21, [1, 1, 0, 0, 0]),
        (31, [1, 1, 1, 0, 0]),
        (91, [3, 3, 3, 0, 0]),
        (121, [3, 3, 3, 3, 0]),
        (151, [3, 3, 3, 3, 3]),
    ],
)
def test_there_are_as_many_finalists_and_rounds_as_there_is_time_for(
    seconds: float, confirmed_rounds: list[int]
) -> None:
    trials = rivals(5e6, 10e6, 10e6, 10e6, 10e6)
    in_seconds(seconds, trials)
    assert rounds_of(trials) == confirmed_rounds


def test_time_to_spare_is_for_what_follows_and_not_for_more_finalists_or_rounds() -> None:
    trials = rivals(5e6, 10e6, 10e6, 10e6)
    in_seconds(185, trials, restless(speed=15e6), spare_s=70)
    assert rounds_of(trials) == [3, 3, 3, 0]
    trials = rivals(5e6, 10e6, 10e6, 10e6)
    in_seconds(185, trials, restless(speed=15e6), spare_s=10)
    assert rounds_of(trials) == [4, 4, 4, 4]


def test_a_baseline_without_a_rival_is_not_confirmed_against_nobody() -> None:
    trials = rivals(10e6, 5e6)
    assert in_seconds(1000, trials) == []


def test_a_round_that_the_next_run_of_the_search_finds_missing_is_the_first_to_be_run() -> None:
    trials = rivals(5e6, 10e6, 10e6)
    in_seconds(31, trials)
    assert rounds_of(trials) == [1, 1, 1]
    assert (0, 1) not in in_seconds(61, trials)
    assert rounds_of(trials) == [3, 3, 3]


# Going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(6))
def test_rounds_that_an_interrupted_search_has_behind_it_are_not_run_again(at: int) -> None:
    trials = [trial(0, 5.0), trial(1, 10.0), trial(2, 10.0)]
    before: list[tuple[int, int]] = []

    def stops(one: Trial, one_round: int) -> Measurement:
        if len(before) == at:
            raise KeyboardInterrupt
        before.append((one.number, one_round))
        return steady()(one, one_round)

    with pytest.raises(KeyboardInterrupt):
        confirm(trials, SPEED, 2, stops)
    after = confirmed(trials)
    assert sorted([*before, *after]) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]


def test_what_is_confirmed_is_not_confirmed_again() -> None:
    trials = [trial(0, 5.0), trial(1, 10.0)]
    confirmed(trials, restless())
    assert confirmed(trials, restless()) == []


def test_a_trial_is_settled_by_all_its_rounds_or_by_a_failure() -> None:
    one = trial(0)
    assert not is_settled(one, 2)
    assert not is_settled(replace(one, confirmations=(completed(),)), 2)
    assert is_settled(replace(one, confirmations=(completed(), completed())), 2)
    assert is_settled(replace(one, confirmations=(ended(Outcome.TIMED_OUT),)), 2)
