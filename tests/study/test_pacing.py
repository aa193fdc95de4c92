"""How long a round is expected to take: by steps on a CPU, by seconds at the least on a GPU."""

from dataclasses import replace

import pytest

from autotune.core import Measurement, Trial
from autotune.probe.order import CONFIRMATION, CUDA_CONFIRMATION
from autotune.study.pacing import rounds_seconds, starting_seconds
from tests.makers import completed, configuration


def measured(context_bytes: int, step_s: float) -> Measurement:
    known = completed(configuration(8))
    steps = tuple(replace(step, seconds=step_s) for step in known.steps)
    return replace(known, context_bytes=context_bytes, steps=steps, accumulation_steps_run=known.accumulation_steps)


def round_s(measurement: Measurement) -> float:
    return rounds_seconds([Trial(1, configuration(8), measurement)], 1) - starting_seconds(measurement)


@pytest.mark.parametrize("step_s", [0.01, 0.05])
def test_a_gpu_s_round_of_short_steps_takes_its_seconds(step_s: float) -> None:
    least = CUDA_CONFIRMATION.untimed_seconds + CUDA_CONFIRMATION.timed_seconds_least
    assert round_s(measured(500 << 20, step_s)) == pytest.approx(least)
    steps = CONFIRMATION.untimed_most + CONFIRMATION.timed_most
    assert round_s(measured(0, step_s)) == pytest.approx(steps * step_s)


def test_a_round_of_long_steps_takes_as_many_as_it_needs_on_either() -> None:
    steps = CONFIRMATION.untimed_most + CONFIRMATION.timed_least
    assert round_s(measured(500 << 20, 2.0)) == round_s(measured(0, 2.0)) == pytest.approx(2.0 * steps)
