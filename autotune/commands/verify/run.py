"""Verify: a plain Trainer trains with a study's result, and its speed and memory are compared with the study's."""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from autotune.commands.save import fields_of_saved
from autotune.commands.verify.result import Verification
from autotune.core import Environment, InvalidRequest, Measurement, Outcome, Step, Trial, write_json
from autotune.core.paths import cache_folder
from autotune.core.units import format_seconds
from autotune.probe.device import nvml
from autotune.probe.order import CHILD_ANSWER
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_device
from autotune.probe.runner import LiveProbe
from autotune.report.live.views import saying
from autotune.report.markdown import wrapped
from autotune.space.launch import launch_line
from autotune.study.result import SearchResult
from autotune.study.store import VERIFICATION, locked, probe_folder, reporting_storage

MOST_STEPS = 100_000
"""The order of the samples is in the training's memory: beyond so many steps it would count."""


def verify(
    folder: str | Path,
    steps: int = 500,
    seconds: float | None = None,
    watch: Callable[[str], None] | bool | None = None,
) -> Verification:
    """Train with the result of the study in this folder for so many timed steps, or until the seconds have elapsed.

    A failed training is returned as one. Writes verification.json to the folder, and order and log to probes/verification.
    watch: called with a line on what is done next; by default, or by True, it is shown on standard error; False: nothing.

    Raises InvalidRequest for what cannot be trained from the study alone, NothingFits for a study without a result,
    StudyInUse, StorageFailed, ProbeHostFailed; KeyboardInterrupt passes, and leaves nothing running.
    """
    folder = Path(folder)
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise InvalidRequest(
            f"The steps must be a whole number from 1 to {MOST_STEPS}, not {steps!r}.", "500 are the default."
        )
    if seconds is not None and not 0 < seconds < math.inf:
        raise InvalidRequest(f"The seconds must be above 0, not {seconds!r}.", "Leave them out to take all steps.")
    result = SearchResult(**fields_of_saved(folder))
    best = result.best
    if (ranks := result.setup.processes) > 1:
        raise InvalidRequest(
            f"The result of this study trains on {ranks} ranks, and verify starts a single process.",
            f"Start your own training with {launch_line(ranks, result.setup.variables)} and watch its speed.",
        )
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


def check_trainable(result: SearchResult, verb: str = "Verify") -> None:
    """Raise InvalidRequest where the model or data of the study are missing. verb: of the advice."""
    if result.workload.user_objects:
        raise InvalidRequest(
            "The model of this study is the caller's own code, which is not in the study.",
            f"{verb} it by running the training itself with best_training_arguments.json.",
        )
    if result.workload.data and not (cache_folder() / result.workload.data / "data").is_dir():
        raise InvalidRequest(
            f"The prepared data of this study is no longer in {cache_folder()}.",
            "Run the same search command again: it prepares the data again.",
        )


def environment_here(measured: Environment, verb: str = "Verify") -> Environment:
    """The study's device as it is now; raises InvalidRequest where there is none of that kind."""
    try:
        return read_device(measured.device)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"The study was measured on {measured.device_name}. {error.written[0]}", f"{verb} it on such a machine."
        ) from error


def _announcement(best: Trial, steps: int, predicted_s: float) -> str:
    sizes, comma, settings = str(best.configuration).partition(", ")
    batch = f"{sizes} = {best.configuration.global_batch_size}{comma}{settings}"
    text = f"Training the answer for {steps} step(s) (about {format_seconds(predicted_s)}): {batch}"
    return "\n".join(wrapped(text))


def _notes(result: SearchResult, here: Environment) -> tuple[str, ...]:
    best = result.best
    notes = []
    if differing := differing_facts(result.environment.identity(), here.identity()):
        notes.append(f"another machine or versions: {'; '.join(differing)}")
    if not best.confirmed:
        notes.append("the promise is from one probe and was not confirmed")
    if best.measurement.worst_batch or best.final.worst_batch:
        notes.append("the promised peak is of the largest batch of the data, which this run may not have had")
    return tuple(notes)


def differing_facts(measured: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """`torch 2.12.0, here 2.13.0` for each fact that differs."""
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
    """The plain training, with exactly the arguments of the study's result."""
    assert result.folder is not None
    place = result.folder / "probes" / "verification"
    used, others = nvml.usage_of(nvml.choose_device(here.device))() or (None, [])
    base, folders = result.request.training_args, partial(probe_folder, result.folder)
    order = LiveProbe(host, here, result.workload, base, result.allowed_bytes, folders).order(
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
    answer, failure = host.attempt(order)
    (place / CHILD_ANSWER).unlink(missing_ok=True)
    warnings = (f"another process on the device: {', '.join(others)}",) if others else ()
    facts: dict[str, Any] = {
        "accumulation_steps": result.best.configuration.gradient_accumulation_steps,
        "accumulation_steps_run": order.accumulation_steps_run,
        "data_parallel_size": result.best.configuration.data_parallel_size,
        "allowed_bytes": order.allowed_bytes,
        "context_bytes": here.context_bytes,
        "probe_seconds": time.monotonic() - begun,
    }
    if failure is not None:
        facts |= {"observed_warnings": warnings, "refused_bytes": failure.refused_bytes}
        return Measurement(failure.outcome, failure.reason, **facts)
    times, waits = answer["step_times_s"], answer["data_wait_s"]
    unknown: dict[str, Any] = {"first_s": 0.0, "middle_s": 0.0, "last_s": 0.0, "optimizer_s": 0.0, "tokens": 0}
    samples = answer["samples"] // len(times)
    return Measurement(
        Outcome.COMPLETED,
        steps=tuple(
            Step(step_s, wait_s, samples=samples, **unknown) for step_s, wait_s in zip(times, waits, strict=True)
        ),
        untimed_steps=answer["untimed_steps"],
        joules=answer["joules"],
        surroundings=answer["surroundings"],
        observed_warnings=(*warnings, *answer["observed_warnings"]),
        **answer["peaks"],
        **facts,
    )
