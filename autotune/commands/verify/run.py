"""Verify: train a study's answer for real, as a plain Trainer does, and hold what was promised against what it got."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from autotune.commands.save import fields_of_saved
from autotune.commands.verify.result import Verification, wrapped
from autotune.core.environment import Environment
from autotune.core.errors import InvalidRequest
from autotune.core.failures import Failure
from autotune.core.io import write_json
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import cache_folder
from autotune.core.step import Step
from autotune.core.trial import Trial
from autotune.core.units import format_seconds
from autotune.probe.device import nvml
from autotune.probe.order import CHILD_ANSWER, Order
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_device
from autotune.probe.runner import LiveProbe
from autotune.report.live.views import saying
from autotune.space.launch import launch_line
from autotune.study.result import SearchResult
from autotune.study.store import VERIFICATION, locked, probe_folder, reporting_storage

MOST_STEPS = 100_000
"""The order in which samples are drawn lies in the training's memory: beyond this it would be felt there."""


def verify(
    folder: str | Path,
    steps: int = 500,
    seconds: float | None = None,
    watch: Callable[[str], None] | bool | None = None,
) -> Verification:
    """Train the answer of the study in this folder for so many timed steps, or until the seconds are over.

    A training that fails is an answer too, and comes back as one. Leaves verification.json in the folder, and order and
    log in probes/verification. watch: called with what is done, before it is; by default, or by True, that is
    shown on standard error; False: nothing is shown.

    Raises InvalidRequest for what cannot be trained from the study alone, NothingFits for a study without an answer,
    StudyInUse, StorageFailed, ProbeHostFailed; KeyboardInterrupt passes, and leaves nothing running.
    """
    folder = Path(folder)
    _check_length(steps, seconds)
    result = SearchResult(**fields_of_saved(folder))
    best = result.best
    _check_one_process(result)
    check_trainable(result)
    predicted = min(steps * (best.final.step_time_s or 1.0), seconds or math.inf)
    with locked(folder):
        saying(watch)(_announcement(best, steps, predicted))
        here = environment_here(result.environment)
        with ProbeHost() as host:
            got = _trained(host, result, here, {"steps": steps, "seconds": seconds}, 20 * predicted + 600)
        use = result.utilization(best)
        verification = Verification(best, got, _notes(result, here), use.mfu if use else None)
        with reporting_storage(folder):
            times = [step.seconds for step in got.steps]
            write_json(folder / VERIFICATION, verification.to_dict() | {"step_times_s": times})
    return verification


# Before the training ----------------------------------------------------------------------------------------------


def _check_length(steps: int, seconds: float | None) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise InvalidRequest(
            f"The steps must be a whole number from 1 to {MOST_STEPS}, not {steps!r}.", "500 are the default."
        )
    if seconds is not None and not 0 < seconds < math.inf:
        raise InvalidRequest(f"The seconds must be above 0, not {seconds!r}.", "Leave them out to take all steps.")


def _check_one_process(result: SearchResult) -> None:
    if (ranks := result.setup.processes) > 1:
        raise InvalidRequest(
            f"The answer of this study trains on {ranks} ranks, and verify starts a single process.",
            f"Start your own training with {launch_line(ranks, result.setup.variables)} and watch its speed.",
        )


def check_trainable(result: SearchResult, verb: str = "Verify") -> None:
    """Raise InvalidRequest where model or data of the study are not at hand. verb: what is to be done with it."""
    if result.workload.user_objects:
        raise InvalidRequest(
            "The model of this study is the caller's own code, which is not in the study.",
            f"{verb} it by running the training itself with best_training_arguments.json.",
        )
    if result.workload.data and not (cache_folder() / result.workload.data / "data").is_dir():
        raise InvalidRequest(
            f"The data of this study, as it was prepared for training, is no longer in {cache_folder()}.",
            "Run the same search command again: it prepares the data anew.",
        )


def environment_here(measured: Environment, verb: str = "Verify") -> Environment:
    """What the study's device can do now; raises InvalidRequest where there is none of that kind."""
    try:
        return read_device(measured.device)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"The study was measured on {measured.device_name}. {error.written[0]}", f"{verb} it on such a machine."
        ) from error


def _announcement(best: Trial, steps: int, predicted: float) -> str:
    sizes, _, settings = str(best.configuration).partition(", ")
    return wrapped(
        f"Training the answer for {steps} step(s) (about {format_seconds(predicted)}): "
        f"{sizes} = {best.configuration.global_batch_size}{', ' if settings else ''}{settings}"
    )


def _notes(result: SearchResult, here: Environment) -> tuple[str, ...]:
    best = result.best
    notes = []
    if differing := differing_facts(result.environment.identity(), here.identity()):
        notes.append(f"another machine or versions: {'; '.join(differing)}")
    if not best.confirmed:
        notes.append("what was promised is from one probe and was not confirmed")
    if best.measurement.worst_batch or best.final.worst_batch:
        notes.append("the peak was promised for the largest batch of the data, which this run need not have met")
    return tuple(notes)


def differing_facts(measured: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """`torch 2.12.0, here 2.13.0` for each fact that is another one here."""
    before, now = ({**facts, **facts["versions"], "versions": None} for facts in (measured, here))
    return [
        f"{name.replace('_', ' ')} {before.get(name)}, here {now.get(name)}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


# The training -----------------------------------------------------------------------------------------------------


def _trained(
    host: ProbeHost, result: SearchResult, here: Environment, request: dict[str, Any], deadline_s: float
) -> Measurement:
    """The plain training of the answer, with exactly the arguments that the study hands out."""
    assert result.folder is not None
    place = result.folder / "probes" / "verification"
    card = nvml.choose_device(here.device)
    used, others = (card and nvml.device_used(card)) or (None, [])
    base, folders = result.request.training_args, partial(probe_folder, result.folder)
    probe = LiveProbe(host, here, result.workload, base, result.allowed_bytes, folders)
    order = probe.order(
        result.best.configuration,
        "verification",
        place,
        deadline_s,
        number=result.best.number,
        training_arguments=result.setup.training_arguments,
        model_arguments=result.setup.model_arguments,
        device_used_bytes=used,
        request=request,
    )
    begun = time.monotonic()
    value, failure = host.attempt(order)
    (place / CHILD_ANSWER).unlink(missing_ok=True)
    warnings = (f"another process on the device: {', '.join(others)}",) if others else ()
    return _measurement(order, value, failure, time.monotonic() - begun, warnings)


def _measurement(
    order: Order, value: Any, failure: Failure | None, seconds: float, warnings: tuple[str, ...]
) -> Measurement:
    """What the child brought back, with the meanings that a probe's measurement has."""
    assert order.configuration is not None
    assert order.environment is not None
    known: dict[str, Any] = {
        "accumulation_steps": order.configuration.gradient_accumulation_steps,
        "accumulation_steps_run": order.accumulation_steps_run,
        "data_parallel_size": order.configuration.data_parallel_size,
        "allowed_bytes": order.allowed_bytes,
        "context_bytes": order.environment.context_bytes,
        "probe_seconds": seconds,
        "observed_warnings": warnings,
    }
    if failure is not None:
        return Measurement(failure.outcome, reason=failure.reason, refused_bytes=failure.refused_bytes, **known)
    times = value["step_times_s"]
    return Measurement(
        Outcome.COMPLETED,
        steps=tuple(
            _step(step_s, wait_s, value["samples"] // len(times))
            for step_s, wait_s in zip(times, value["data_wait_s"], strict=True)
        ),
        untimed_steps=value["untimed_steps"],
        joules=value["joules"],
        surroundings=value["surroundings"],
        **value["peaks"],
        **known | {"observed_warnings": (*warnings, *value["observed_warnings"])},
    )


def _step(seconds: float, data_wait_s: float, samples: int) -> Step:
    """A step of which only this is known."""
    return Step(seconds, data_wait_s, first_s=0.0, middle_s=0.0, last_s=0.0, optimizer_s=0.0, samples=samples, tokens=0)
