"""Which trials are confirmed next."""

from dataclasses import replace
from typing import Any

import numpy as np

from autotune.core import Outcome, Trial
from autotune.study.finalists import finalists
from tests.makers import MIB, ended, trial

SPEED = "samples_per_second"


def numbers(trials: list[Trial]) -> list[int]:
    return [one.number for one in trials]


def test_finalists_are_the_best_and_those_within_noise_of_it() -> None:
    trials = [trial(0, 10), trial(1, 99), trial(2, 100), trial(3, 98), trial(4, 90)]
    assert numbers(finalists(trials, SPEED)) == [2, 1, 3]
    assert numbers(finalists(trials, SPEED, most=2)) == [2, 1]
    assert numbers(finalists(trials[:2], SPEED)) == [1]
    assert finalists([], SPEED) == []


def drawn(*speeds: float, apart: float = 0.03) -> dict[int, Any]:
    """Draws of trials 0, 1, …, each uncertain by this share, by itself."""
    chance = np.random.default_rng(0)
    return {number: rate * np.exp(chance.normal(0, apart, 2000)) for number, rate in enumerate(speeds)}


def test_finalists_are_those_whose_expected_gain_is_worth_a_round() -> None:
    trials = [trial(number, rate) for number, rate in enumerate((100.0, 99.0, 97.0, 90.0))]
    gains: dict[int, float] = {}

    def is_worth(trial: Trial, gain: float) -> bool:
        gains[trial.number] = gain
        return gain > 0.002

    assert numbers(finalists(trials, SPEED, drawn=drawn(100.0, 99.0, 97.0, 90.0), is_worth=is_worth)) == [0, 1, 2]
    assert 0.01 < gains[1] < 0.02
    assert gains[3] < 0.001
    assert numbers(finalists(trials, SPEED, most=2, drawn=drawn(100.0, 99.0, 97.0, 90.0))) == [0, 1]
    lucky = drawn(95.0, 99.0, 97.0, 90.0)
    assert numbers(finalists(trials, SPEED, drawn=lucky, is_worth=is_worth))[0] == 1, "what all probes say, not the one"


def test_of_those_that_surely_do_not_differ_the_leanest_stands_for_all() -> None:
    trials = [trial(0, 100.0, 500 * MIB), trial(1, 99.9, 400 * MIB), trial(2, 99.8, 450 * MIB), trial(3, 98.0)]
    shared = drawn(100.0)[0]
    speeds = {0: shared, 1: 0.999 * shared, 2: 0.998 * shared, 3: drawn(98.0)[0]}
    assert numbers(finalists(trials, SPEED, drawn=speeds)) == [1, 3]


def test_a_wide_interval_makes_more_rivals() -> None:
    assert numbers(finalists([trial(0, 100, spread=0.3), trial(1, 85)], SPEED)) == [0, 1]


def test_once_some_are_confirmed_those_whose_probe_was_faster_are_next() -> None:
    baseline, lucky = trial(0, 10, confirmed=10), trial(1, 100, confirmed=50)
    others = [trial(2, 99), trial(3, 60), trial(4, 40)]
    assert numbers(finalists([baseline, lucky, *others], SPEED)) == [2, 3]
    assert numbers(finalists([baseline, lucky, *others], SPEED, least_gain=0.5)) == [2]
    slower = [trial(0, 10, confirmed=8), trial(1, 100, confirmed=80), trial(2, 99)]
    assert finalists(slower, SPEED) == [], "the machine was slower in the rounds"
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
