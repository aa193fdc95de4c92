"""Measuring a trial: within its deadline, again if it was disturbed, and written to disk."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.core import (
    Configuration,
    Environment,
    Interval,
    Measurement,
    Outcome,
    Trial,
    TuningRequest,
    Workload,
    write_json,
)
from autotune.core.configuration import RANKS
from autotune.core.errors import TimeIsOver
from autotune.core.interrupt import StopRequest
from autotune.core.io import Unreadable, read_record
from autotune.core.note import Note, NoteKind
from autotune.core.slot import SlotKind
from autotune.judge.constants import SAME_MEMORY
from autotune.judge.dominance import NEVER_PROBED
from autotune.judge.objective import speed
from autotune.judge.standing import Standing
from autotune.probe import Host, Probe, ProbeOptions
from autotune.probe.order import ANSWER, ORDER
from autotune.probe.runner import LiveProbe
from autotune.space.settings import MICRO, SETTINGS
from autotune.space.settings.setting import shown_values
from autotune.study.job import Run
from autotune.study.plan import Plan
from autotune.study.store import probe_folder, read_trial, reporting_storage

LONGEST_BASELINE_S = 300.0
"""Deadline of the baseline's own probe, from which all others follow. A probe takes some fifteen steps of at most three
micro-steps, so micro-steps of six seconds are done in time; what takes longer mostly hangs, and nobody waits for half an hour."""

REPEATS = 2
"""Largest number of repeats of a disturbed measurement."""

REPEATED = 0.1
"""Share of the time left that a repeat may take if that is limited."""

SLOW_CALLBACKS = 0.1
"""Share of a step from which on the seconds of the user's callbacks are noted."""

STAYS_DISTURBED = 3
"""Trials in a row that stayed disturbed after their repeats: from then on the disturbance is the machine as it is."""


def live_probe(
    request: TuningRequest,
    host: Host,
    environment: Environment,
    workload: Workload,
    allowed_bytes: int,
    folder: Path,
    **more: Any,
) -> LiveProbe:
    """The probe that trains with a request's arguments, with its files in this study's folder.

    more: further fields of `LiveProbe`, such as device_used.
    """
    place, base = partial(probe_folder, folder), request.training_args
    return LiveProbe(host, environment, workload, base, allowed_bytes, place, request.objective, **more)


def left_out(trials: Sequence[Trial]) -> dict[str, str]:
    """Callbacks of the user's that failed in the trials' probes and were left out of them -> its error."""
    measured = (measurement for trial in trials for measurement in trial.measurements)
    return {name: error for measurement in measured for name, error in measurement.left_out.items()}


def callback_notes(trials: Sequence[Trial]) -> Iterator[Note]:
    """Notes on callbacks of the user's that failed, and on those that take long in the baseline."""
    if failed := ", ".join(f"{name} ({error})" for name, error in left_out(trials).items()):
        yield Note(NoteKind.FAILED_IN_PROBES, detail=failed)
    for measured in (trial.measurement for trial in trials[:1]):
        if (share := measured.callbacks_s / (measured.step_time_s or math.inf)) >= SLOW_CALLBACKS:
            yield Note(NoteKind.SLOW_CALLBACKS, {"share": share})


def measure(
    folder: Path,
    plan: Plan,
    standing: Standing,
    probe: Probe,
    job: Run,
    stop_request: StopRequest | None = None,
) -> Measurement:
    """A job's measurement, on disk below the study's folder when this returns.

    What was disturbed from outside (a foreign process, a hot device) could have decided the answer, whichever way it came
    out: it is measured again, unless the user wishes to stop or only losses are wanted and there are some. Raises StorageFailed
    if the disk refuses, TimeIsOver if it was not done in the job's seconds; then nothing of it is kept.
    """
    until = time.monotonic() + job.seconds
    configuration, slot, losses = job.configuration, job.slot, job.losses
    of_trial = slot.kind is SlotKind.TRIAL
    trials, best = standing.trials, standing.leader
    bar = speed(best.measurement, plan.objective) if best else None
    if slot.round or not of_trial or bar is None:
        best_so_far = None
    else:
        best_so_far = Interval(*(job.share * bound for bound in (bar, bar.low, bar.high)))
    deadline = _deadline_s(plan, trials, job)
    held = next((trial.measurement.held for trial in trials if trial.measurement.held), None)
    own = next((trial for trial in trials if trial.number == slot.number and of_trial), None)
    place = probe_folder(folder, slot)
    is_other = slot.number or not of_trial
    what = f"trial {slot.number} was measured" if is_other else "your own settings were measured"

    def once() -> Measurement:
        left = until - time.monotonic()
        if left <= 0:
            raise plan.time.too_late(what)
        options = ProbeOptions(slot, min(deadline, left), best_so_far, job.whole_speed, losses, held)
        began = time.time()
        measurement = as_requested(probe(configuration, options), next(iter(trials), None))
        measurement = replace(measurement, training_steps=plan.training_steps)
        if measurement.started_s is None:
            measurement = replace(measurement, started_s=began)
        if measurement.outcome is Outcome.TIMED_OUT and (left < deadline or plan.time.is_over):
            raise plan.time.too_late(what, measurement.reason)
        earlier = own.confirmations if own and slot.round > 1 else ()  # they compiled what this one found
        return replace(measurement, compile_s=earlier[0].compile_s) if earlier else measurement

    with reporting_storage(folder):
        (place / ANSWER).unlink(missing_ok=True)  # of an earlier order
        measurement = once()
        for _ in range(0 if _stays_disturbed(trials) else REPEATS):
            in_time = measurement.probe_seconds <= REPEATED * (until - time.monotonic())
            has_losses = bool(losses and measurement.losses)
            if not _disturbed(measurement) or has_losses or not in_time or (stop_request and stop_request.to_stop):
                break
            reasons = (*measurement.repeated_because, *measurement.observed_warnings)
            keep(place, configuration, measurement)  # as long as nothing better is there
            with contextlib.suppress(TimeIsOver):
                measurement = replace(once(), repeated_because=reasons)
        keep(place, configuration, measurement)
    return measurement


def as_requested(measurement: Measurement, baseline: Trial | None) -> Measurement:
    """The measurement; misconfigured if its training shows other values than requested. baseline: None if it is this one.

    The baseline defines what its values are in the user's program, and may show any. Another trial shows with the same value
    what the baseline shows, and with another value that one, and something else than the baseline. Only the number of ranks is
    never the program's.
    """
    own = baseline.configuration.values if baseline else measurement.asked
    own_shown = baseline.measurement.settings if baseline else {}
    reasons, without_effect = list[str](), list[str]()
    for name, value in measurement.asked.items():
        shown, before, is_own = measurement.settings.get(name), own_shown.get(name), value == own.get(name)
        is_held = name == MICRO and measurement.held is not None  # judged by what the batches hold
        if is_held or shown is None or (is_own and before is None and name != RANKS):
            continue
        values, values_before = shown_values(shown), shown_values(before)
        if not is_own and shown == before and (str(value) in values or str(own.get(name)) not in values):
            without_effect.append(name)
            reasons.append(f"{name} {value} has no effect: your own settings show {shown} too")
        elif str(value) not in values and not (is_own and values & values_before):
            reasons.append(f"{name} {value} became {shown}")
    if not reasons:
        return measurement
    where, reason = ", ".join(without_effect), ", ".join(reasons)
    return replace(measurement, outcome=Outcome.MISCONFIGURED, reason=reason, where=where)


def unsupported(configuration: Configuration, why: str, where: str = NEVER_PROBED) -> Measurement:
    """The measurement of what cannot run in this environment, such as the user's own settings."""
    return Measurement(Outcome.UNSUPPORTED, why, where=where, asked=configuration.values)


def needs_too_much(trials: Sequence[Trial], trial: Trial) -> Measurement | None:
    """The measurement of a round in which a trial would run out of memory as another did; None if it may fit.

    Longer trainings can need more than their probes did, if batches differ in shape. A trial without any round is not run
    whose probe needed as much as that of one which ran out of memory in a round.
    """
    needed = trial.measurement.peak_bytes
    if trial.number == 0 or trial.confirmations or needed is None:
        return None
    for other in trials:
        ran_out = any(measured.outcome is Outcome.OUT_OF_MEMORY for measured in other.confirmations)
        if ran_out and (other.measurement.peak_bytes or math.inf) <= (1 + SAME_MEMORY) * needed:
            reason = f"not run: its probe needed as much memory as that of trial {other.number}, which ran out of it in a round"
            allowed = trial.measurement.allowed_bytes
            return Measurement(Outcome.OUT_OF_MEMORY, reason, asked=trial.configuration.values, allowed_bytes=allowed)
    return None


def keep(place: Path, configuration: Configuration, measurement: Measurement) -> None:
    """Write a measurement that is not there yet, and its order if the probe keeps no files, such as a replay."""
    try:
        ordered = read_record(place / ORDER, lambda order: Configuration.from_dict(order["configuration"]))
    except (FileNotFoundError, Unreadable):
        ordered = None
    if ordered != configuration:
        place.mkdir(parents=True, exist_ok=True)
        (place / ANSWER).unlink(missing_ok=True)  # of the other order
        write_json(place / ORDER, {"configuration": configuration.to_dict()})
    elif (written := read_trial(place, 0)) is not None and written.measurement.to_dict() == measurement.to_dict():
        return
    write_json(place / ANSWER, measurement.to_dict())


def _disturbed(measurement: Measurement) -> bool:
    """True if something besides the training may have influenced this measurement."""
    kinds = (Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT)
    return bool(measurement.observed_warnings) and measurement.outcome in kinds


def _stays_disturbed(trials: Sequence[Trial]) -> bool:
    last = [trial.measurement for trial in trials[-STAYS_DISTURBED:]]
    return len(last) == STAYS_DISTURBED and all(measurement.observed_warnings for measurement in last)


def _deadline_s(plan: Plan, trials: Sequence[Trial], job: Run) -> float:
    """10 x the baseline's probe, at least 60 s; a confirmation may run every micro-step and is given that much more.

    What its values are expected to add (compiling) comes tenfold on top. Without a baseline that trained it is the baseline's
    own deadline.
    """
    if plan.probe_timeout_s is not None:
        return plan.probe_timeout_s
    configuration = job.configuration
    added = 10 * sum(SETTINGS[name].costs.seconds(value) for name, value in configuration.values.items())
    if not trials or not trials[0].measurement.steps:
        return LONGEST_BASELINE_S + added
    seconds = max(60.0, 10 * trials[0].measurement.probe_seconds)
    if job.slot.round:
        seconds *= max(1.0, configuration.gradient_accumulation_steps / 3)
    return seconds + added
