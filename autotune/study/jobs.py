"""Jobs of a study: what a device does for a trial or a round, and what came of it; events for those who watch."""

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

from autotune.core import Configuration, Interval, Measurement
from autotune.executors.pool import Ended, Job, Pool
from autotune.probe import Probe
from autotune.space.dominance import NEVER_PROBED, TOO_FEW_DEVICES
from autotune.study import devices
from autotune.study.measure import measure, unsupported
from autotune.study.pacing import reserved_seconds, rounds_left, seconds_to_go
from autotune.study.plan import Progress
from autotune.study.study import Study


@contextlib.contextmanager
def abandoning(study: Study, pool: Pool) -> Iterator[None]:
    """Within, jobs run; whatever ends it, none does after it."""
    try:
        yield
    finally:
        if pool.is_running:
            pool.abandon()
        study.running.clear()
        study.again.clear()
        study.unlikely.clear()


def job_of(
    study: Study,
    pool: Pool,
    configuration: Configuration,
    number: int,
    confirmation: int = 0,
    device: str = "",
    whole_speed: Interval | None = None,
    losses: int = 0,
) -> Job:
    """What a device does for a trial, or for one of its rounds: (seconds it took, measurement).

    whole_speed, losses: as in ProbeOptions."""
    why, where = study.space.baseline_problem if number == 0 else "", NEVER_PROBED
    if (ranks := pool.width(configuration)) > len(pool.devices):
        why, where = f"{ranks} ranks take as many devices, and {len(pool.devices)} can be used", TOO_FEW_DEVICES
    if why:
        measurement = unsupported(study.folder, configuration, why, number, confirmation, where)
        return lambda probe: (None, measurement)
    plan, trials = study.plan, tuple(study.trials)
    seconds = plan.time.cut(math.inf)
    if trials and not confirmation:
        seconds = plan.time.seconds_left() - reserved_seconds(plan, trials, study.reference_seconds())
    share = devices.share_reached(study, device) if pool.is_several else 1.0

    def job(probe: Probe) -> tuple[float | None, Measurement]:
        started = time.monotonic()
        measurement = measure(
            study.folder,
            plan,
            trials,
            probe,
            configuration,
            number,
            confirmation,
            study.wish,
            seconds,
            share,
            whole_speed,
            losses,
        )
        return time.monotonic() - started, measurement

    return job


def measured(study: Study, pool: Pool, configuration: Configuration, ended: Ended) -> Measurement | None:
    """The measurement of a job that ended, a crash where it lost a second executor; None where another device is to run it
    first, after a lost executor or a crash that may be the device's.
    """
    key = ended.key
    if ended.error is not None:
        study.losses[key] += 1.0 if pool.devices else 0.5  # what all are lost with may be their network
        return devices.lost(configuration) if study.losses[key] >= devices.MOST_LOST else None
    seconds, measurement = ended.value
    if seconds is not None:
        study.pace.append((seconds, measurement.probe_seconds))
    return None if devices.is_doubted(study, pool, configuration, ended) else measurement


def progress(study: Study, kind: str, **what: Any) -> Progress:
    """Where the study stands, for those who watch."""
    plan = study.plan
    return Progress(
        kind,
        tuple(study.trials),
        plan.objective,
        max_gain=study.max_gain,
        probes_left=max(0, plan.probes(study.trials) - len(study.trials)),
        seconds_left=plan.time.seconds_left() if plan.time.is_set else None,
        seconds_to_go=seconds_to_go(
            plan,
            study.trials,
            kind not in ("finishing", "done"),
            study.racing,
            study.pace,
            study.reference_seconds(rounds_left(plan, study.trials)),
        ),
        folder=study.folder,
        **what,
    )
