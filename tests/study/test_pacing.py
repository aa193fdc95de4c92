"""How long a round is expected to take: by steps on a CPU, by seconds at the least on a GPU."""

from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from autotune.core import Measurement, Trial
from autotune.core.time_limit import TimeLimit
from autotune.probe.order import CONFIRMATION, CUDA_CONFIRMATION
from autotune.probe.train.adaptive import HOPELESS_LEAST
from autotune.study.pacing import (
    TYPICAL_ROUNDS,
    finishing_seconds,
    probes_to_go,
    round_seconds,
    seconds_to_go,
)
from autotune.study.plan import Plan
from tests.makers import GIB, completed, configuration, standing_of, trial


def measured(step_s: float, **facts: Any) -> Measurement:
    known = completed(configuration(8))
    steps = tuple(replace(step, seconds=step_s) for step in known.steps)
    return replace(known, steps=steps, **facts)


def round_s(measurement: Measurement, is_cpu: bool = True) -> float:
    return round_seconds(Trial(1, configuration(8), measurement), is_cpu) - measurement.starting_s


@pytest.mark.parametrize("step_s", [0.01, 0.05])
def test_a_gpu_s_round_of_short_steps_takes_its_seconds(step_s: float) -> None:
    least = step_s + 2 * CUDA_CONFIRMATION.window_s + CUDA_CONFIRMATION.timed_seconds_least
    assert round_s(measured(step_s, context_bytes=500 << 20), is_cpu=False) == pytest.approx(least)
    assert round_s(measured(step_s), is_cpu=False) == pytest.approx(least), "whose context is not visible"
    steps = CONFIRMATION.untimed_least + 0.5 + CONFIRMATION.timed_least
    assert round_s(measured(step_s)) == pytest.approx(steps * step_s)


def test_a_round_of_long_steps_takes_as_many_as_it_needs_on_either() -> None:
    assert round_s(measured(2.0)) == pytest.approx(2.0 * (CONFIRMATION.untimed_least + 0.5 + HOPELESS_LEAST))
    assert round_s(measured(2.0), is_cpu=False) == pytest.approx(2.0 * (1 + 2 + HOPELESS_LEAST)), "windows of a step"
    assert round_s(measured(20.0), is_cpu=False) == pytest.approx(20.0 * (2 + HOPELESS_LEAST)), "settled in one"


def test_the_time_to_go_is_of_all_probes_a_proof_and_checks_that_are_left() -> None:
    plan = Plan(n_trials=5, objective="samples_per_second", allowed_bytes=GIB)
    trials = [trial(0, 10.0, probe_seconds=9.0), trial(1, 20.0, of=configuration(16), probe_seconds=3.0)]
    check_s = finishing_seconds(standing_of(trials))
    proof_s = TYPICAL_ROUNDS * fmean(round_seconds(each, True) for each in trials)
    assert seconds_to_go(plan, standing_of([]), True) is None
    assert seconds_to_go(plan, standing_of(trials), False) == check_s
    all_s = 3 * 3.0 + proof_s + check_s
    assert seconds_to_go(plan, standing_of(trials), True) == pytest.approx(all_s)
    assert seconds_to_go(plan, standing_of(trials), True, pace=[(20.0, 9.0), (4.0, 3.0)]) == pytest.approx(all_s), (
        "too few"
    )
    assert seconds_to_go(plan, standing_of(trials), True, pace=[(20.0, 9.0), (4.0, 3.0), (4.0, 2.0)]) == pytest.approx(
        2 * all_s
    )
    timed = replace(plan, time=TimeLimit(5.0))
    assert seconds_to_go(timed, standing_of([]), True) == pytest.approx(4.5, abs=0.4)
    assert seconds_to_go(timed, standing_of(trials), True) == pytest.approx(4.5, abs=0.4)


@pytest.mark.parametrize(("measured", "sampler", "to_go"), [(1, "physics", 9), (12, "physics", 2), (12, "tpe", 8)])
def test_as_many_probes_are_expected_as_searches_take(measured: int, sampler: str, to_go: int) -> None:
    plan = Plan(n_trials=20, objective="samples_per_second", allowed_bytes=GIB, sampler=sampler)
    assert probes_to_go(plan, [trial(number) for number in range(measured)]) == to_go
    assert probes_to_go(replace(plan, n_trials=measured), [trial(number) for number in range(measured)]) == 0
