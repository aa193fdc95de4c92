"""Replies of child processes: a measurement, a value or the reason why there is none."""

import contextlib
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core import AutotuneError, Measurement, Outcome, errors, failures, read_json
from autotune.core.errors import ProbeHostFailed
from autotune.core.failures import Failure
from autotune.core.io import file_end
from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe import ExitInfo, Host
from autotune.probe.order import CHILD_ANSWER, LOG, STAGE, Order, TrainingOrder, answer_name
from autotune.probe.process.ranks import decisive, merge_ranks, merge_values

STILL = {"build": ", while the Trainer and its data loader were built", "data": ", while data was read"}
"""Stage -> what a training that was not done in time did last."""

STARTER = "the process that starts probes"
"""The host's name in messages."""

RESUME = "What was measured is kept: run the same command again to resume."


OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that no failure of a training sends."""


def ended_from_outside(info: ExitInfo) -> bool:
    """True if something but the training, autotune and the kernel's out-of-memory killer ended processes or stopped the host."""
    is_ended = bool({*info.codes} & {-number for number in OUTSIDE}) and not info.kernel_oom_kills
    return is_ended or info.ended == "host hung"


def read_answer(order: TrainingOrder, info: ExitInfo) -> Measurement:
    """The children's measurement if they left a valid one in time, else one that says why not."""
    seconds, tail = info.seconds, log_tail(Path(order.folder))

    def read(reply: Mapping[str, Any]) -> Measurement:
        measurement = Measurement.from_dict(reply)
        crashed = measurement.outcome is Outcome.CRASHED
        if crashed and failures.worker_killed_for_memory(tail, info.kernel_oom_kills):
            return replace(measurement, outcome=Outcome.OUT_OF_MEMORY, where="data")  # only the host could see it
        return measurement

    ends = _rank_ends(order, info, read)
    completed = [end for end in ends if isinstance(end, Measurement) and end.outcome is Outcome.COMPLETED]
    if len(completed) == order.ranks:
        measurement = merge_ranks(completed) if order.ranks > 1 else completed[0]
        repeated = (ResultWarning(WarningKind.KILLED),) * bool(info.killed)
        return replace(measurement, repeated_because=repeated, probe_seconds=seconds)
    end = ends[decisive(ends)]
    if isinstance(end, Measurement):
        return replace(end, log_tail=tail, probe_seconds=seconds)
    reason, where = end.reason, end.where
    if info.ended == "timed out":
        where = next(iter(re.findall(STAGE.format("(.*)"), tail)[-1:]), where)
        reason = f"not done after {order.deadline_s:.0f} s{STILL.get(where, '')}"
    return Measurement(
        end.outcome,
        reason=reason,
        where=where,
        accumulation_steps=order.configuration.gradient_accumulation_steps,
        accumulation_steps_run=order.accumulation_steps_run,
        data_parallel_size=order.configuration.data_parallel_size,
        allowed_bytes=order.allowed_bytes,
        refused_bytes=end.refused_bytes,
        probe_seconds=seconds,
        log_tail=tail,
    )


def read_value(order: Order, info: ExitInfo) -> tuple[Any, Failure | None]:
    """(value, None) of an order of another kind than `probe`, or (None, why it failed)."""

    def read(reply: Mapping[str, Any]) -> Any:
        if "value" in reply:
            return reply["value"]
        return Failure(Outcome(reply["outcome"]), reply["reason"], reply["where"])

    ends = _rank_ends(order, info, read)
    if failed := [end for end in ends if isinstance(end, Failure)]:
        return None, failed[decisive(failed)]
    return ends[0] if order.ranks == 1 else merge_values(ends), None


def attempt(host: Host, order: Order) -> tuple[Any, Failure | None]:
    """Have a host carry out an order of another kind than `probe`: (value, None), or (None, why it failed)."""
    return read_value(order, host.run(order))


def ask(host: Host, order: Order) -> Any:
    """The value of a `prepare` or `capabilities` order; raises the child's own error, or ProbeHostFailed."""
    info = host.run(order)
    folder = Path(order.folder)
    try:
        reply = read_json(folder / CHILD_ANSWER)
    except (OSError, ValueError):
        host.time_limit.check("device, model and data were read")
        output = log_tail(folder)
        failure = failure_of(info, 0, output)
        what = "device" if order.kind == "capabilities" else "model and data"
        code = info.codes[0] if info.codes else None
        raise ProbeHostFailed(f"Reading the {what} failed: {failure.reason}.", advice_on(code, output)) from None
    return value_of(reply)


def value_of(reply: Mapping[str, Any]) -> Any:
    """The value of a reply; raises the error of autotune that it holds instead."""
    if "error" in reply:
        kind: type[AutotuneError] = getattr(errors, reply["error"], AutotuneError)
        raise kind(reply["message"], reply["advice"])
    return reply["value"]


def advice_on(code: int | None, output: str) -> str:
    """Advice on a process that ended with this exit code or -signal and this output."""
    if code == -signal.SIGKILL:
        return "Free memory, or run the same command again."
    if failures.from_exit(code, 0, output).outcome is Outcome.OUT_OF_MEMORY:
        return "Free memory, or raise the limit of this shell (ulimit -v)."
    return f"The end of its output:\n{end}" if (end := failures.relevant_end(output)) else "It printed nothing."


def _rank_ends(order: Order, info: ExitInfo, read: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    """Each rank's reply, or the Failure that its end means; without those that were ended because another one failed."""
    folder = Path(order.folder)
    if info.ended != "exited":
        return [failure_of(info, 0, log_tail(folder))]
    ends = []
    for rank in range(order.ranks):
        end = None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            end = read(read_json(folder / answer_name(rank)))
        if end is None and order.ranks > 1 and info.codes[rank] is None:
            continue
        end = failure_of(info, rank, log_tail(folder)) if end is None else end
        failed = isinstance(end, (Measurement, Failure)) and end.outcome is not Outcome.COMPLETED
        ends.append(replace(end, reason=f"rank {rank}: {end.reason}") if failed and order.ranks > 1 else end)
    return ends


def failure_of(info: ExitInfo, rank: int, tail: str) -> Failure:
    """Meaning of the end of a rank without a reply. tail: the end of the log.

    Raises ProbeHostFailed if no failure of the order ended the host: nothing is known of the order then.
    """
    match info.ended:
        case "not started":
            return Failure(Outcome.UNSUPPORTED, info.reason, "start")
        case "timed out":
            return Failure(Outcome.TIMED_OUT, f"not done after {info.seconds:.0f} s")
        case "host hung":
            raise ProbeHostFailed(f"{STARTER.capitalize()} did not answer, twice.", RESUME)
        case "host ended":
            failure = failures.from_exit(info.codes[0], info.kernel_oom_kills, info.output)
            if ended_from_outside(info):
                raise ProbeHostFailed(f"{STARTER.capitalize()} was {failure.reason}.", RESUME)
            return replace(failure, reason=f"{STARTER} failed: {failure.reason}")
    said = re.sub(f"^{STAGE.format('.*')}\n", "", tail, flags=re.MULTILINE)
    return failures.from_exit(info.codes[rank], info.kernel_oom_kills, said)


def log_tail(folder: Path, size: int = 4000) -> str:
    """The end of an order's log, without frames of native backtraces; empty if there is none."""
    with contextlib.suppress(OSError):
        return failures.without_frames(file_end(folder / LOG, 16 * size).decode(errors="replace"))[-size:]
    return ""
