"""A real competitor on every core during a real probe: the measurement carries the warning and is made again."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from autotune.core import Configuration, Environment, Measurement, Outcome, Workload
from autotune.core.slot import Slot
from autotune.core.warning import WarningKind
from autotune.judge.standing import Standing
from autotune.probe import ProbeOptions
from autotune.probe.order import Timing
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.runner import LiveProbe
from autotune.study.job import Run
from autotune.study.measure import measure
from autotune.study.plan import Plan
from autotune.study.store import probe_folder, read_trial
from tests.probe.probes import configuration

pytestmark = [pytest.mark.alone, pytest.mark.nightly]

GIB = 2**30
LONG_ENOUGH = Timing(untimed_least=1, untimed_most=1, timed_least=15, timed_most=15, seconds=1.5)
"""Steps for more than the half second from which foreign work can be told."""


@contextmanager
def competitor() -> Iterator[None]:
    """A foreign process on every core."""
    burning = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(burning, start_new_session=True) for _ in range(len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for trial in running:
            trial.kill()
            trial.wait()


def test_a_probe_beside_a_competitor_is_warned_and_made_again_when_it_is_gone(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    place, workload = partial(probe_folder, tmp_path), workload_of("gpt2-mini", sequence_length=16)
    live = LiveProbe(host, environment, workload, {}, GIB, place, timings=(LONG_ENOUGH, LONG_ENOUGH))
    probes: list[Configuration] = []

    def probe(asked: Configuration, options: ProbeOptions) -> Measurement:
        probes.append(asked)
        with competitor() if len(probes) == 1 else nullcontext():
            return live(asked, options)

    plan = Plan(n_trials=1, objective="samples_per_second", allowed_bytes=GIB)
    measurement = measure(tmp_path, plan, Standing(), probe, Run(Slot(), configuration(8)))
    assert measurement.outcome is Outcome.COMPLETED
    assert any(warning.kind is WarningKind.OTHER_PROCESSES for warning in measurement.repeated_because)
    assert not any("other processes used 2" in warning.text for warning in measurement.observed_warnings)
    trial = read_trial(probe_folder(tmp_path, Slot()), 0)
    assert trial is not None
    assert trial.measurement.repeated_because == measurement.repeated_because
