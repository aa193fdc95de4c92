"""Answers of child processes: a measurement, a value or the reason why there is none."""

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core import Measurement, Outcome, failures, read_json
from autotune.probe.order import LOG, Order, answer_name
from autotune.probe.process.ranks import decisive, merge_ranks, merge_values

Account = Mapping[str, Any]
"""How an order ended. ended: exited, timed out, host ended, host hung or not started; seconds: that it took; codes: of each
rank the exit code, -signal, or None where it was ended; kernel_oom_kills: meanwhile; reason: of one not started; output:
the end of what a host that ended had printed; killed: how often the order was begun again because something else killed it."""

STARTER = "the process that starts probes"
"""A host's name in messages."""


def killed_from_outside(account: Account) -> bool:
    """Whether something else than the training, autotune or the kernel's want of memory ended the order's processes."""
    codes = account.get("codes") or [account.get("code")]
    return -signal.SIGKILL in codes and not account["kernel_oom_kills"]


def read_answer(order: Order, account: Account) -> Measurement:
    """The children's measurement where they left a valid one in time, else what their ends mean."""
    seconds = float(account["seconds"])
    if account["ended"] != "exited":
        return _failed(order, failure_of(account, 0, log_tail(Path(order.folder))), seconds)
    ends = [end for rank in range(order.ranks) if (end := _measurement_of(order, rank, account, seconds)) is not None]
    completed = [end for end in ends if end.outcome is Outcome.COMPLETED]
    if len(completed) < order.ranks:
        return ends[decisive(ends)]
    measurement = merge_ranks(completed) if order.ranks > 1 else completed[0]
    return replace(measurement, repeated_because=("killed from outside",) * bool(account.get("killed")))


def read_value(order: Order, account: Account) -> tuple[Any, failures.Failure | None]:
    """(value, None) of an order that trains something else than a probe, or (None, why it failed)."""
    if account["ended"] != "exited":
        return None, failure_of(account, 0, log_tail(Path(order.folder)))
    ends = [_value_of(order, rank, account) for rank in range(order.ranks)]
    if failed := [failure for _, failure in ends if failure is not None]:
        return None, failed[decisive(failed)]
    values = [value for value, _ in ends if value is not None]
    if len(values) < order.ranks:
        return None, failure_of(account, 0, log_tail(Path(order.folder)))
    return values[0] if order.ranks == 1 else merge_values(values), None


def _measurement_of(order: Order, rank: int, account: Account, seconds: float) -> Measurement | None:
    """What this rank left, or what its end means; None where it was well, and ended because another one failed."""
    folder = Path(order.folder)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        answer = replace(Measurement.from_dict(read_json(folder / answer_name(rank))), probe_seconds=seconds)
        if answer.outcome is Outcome.COMPLETED:
            return answer
        tail = log_tail(folder)
        if answer.outcome is Outcome.CRASHED and failures.worker_killed_for_memory(tail, account["kernel_oom_kills"]):
            answer = replace(answer, outcome=Outcome.OUT_OF_MEMORY, where="data")  # only the host could see it
        return replace(answer, reason=_with_rank(order, rank, answer.reason), log_tail=tail)
    failure = _failure_of_rank(order, rank, account)
    return None if failure is None else _failed(order, failure, seconds)


def _value_of(order: Order, rank: int, account: Account) -> tuple[Any, failures.Failure | None]:
    """(a rank's value, None), (None, why there is none), or (None, None) where it ended because another one failed."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        answer = read_json(Path(order.folder) / answer_name(rank))
        if "value" in answer:
            return answer["value"], None
        reason = _with_rank(order, rank, answer["reason"])
        return None, failures.Failure(Outcome(answer["outcome"]), reason, answer["where"])
    return None, _failure_of_rank(order, rank, account)


def _failure_of_rank(order: Order, rank: int, account: Account) -> failures.Failure | None:
    """What the end of a rank without an answer means; None where it was ended because another one failed."""
    if order.ranks > 1 and account["codes"][rank] is None:
        return None
    failure = failure_of(account, rank, log_tail(Path(order.folder)))
    return replace(failure, reason=_with_rank(order, rank, failure.reason))


def _with_rank(order: Order, rank: int, reason: str) -> str:
    return f"rank {rank}: {reason}" if order.ranks > 1 else reason


def _failed(order: Order, failure: failures.Failure, seconds: float) -> Measurement:
    if failure.outcome is Outcome.TIMED_OUT:
        failure = replace(failure, reason=f"not done after {order.deadline_s:.0f} s")
    configuration = order.configuration
    return Measurement(
        failure.outcome,
        reason=failure.reason,
        where=failure.where,
        accumulation_steps=configuration.gradient_accumulation_steps if configuration else 1,
        accumulation_steps_run=order.accumulation_steps_run,
        data_parallel_size=configuration.data_parallel_size if configuration else 1,
        allowed_bytes=order.allowed_bytes,
        refused_bytes=failure.refused_bytes,
        probe_seconds=seconds,
        log_tail=log_tail(Path(order.folder)),
    )


def failure_of(account: Account, rank: int, tail: str) -> failures.Failure:
    """What the order's end means for this rank, where it left no answer. tail: the end of the log."""
    match account["ended"]:
        case "not started":
            return failures.Failure(Outcome.UNSUPPORTED, account["reason"], "start")
        case "timed out":
            return failures.Failure(Outcome.TIMED_OUT, f"not done after {account['seconds']:.0f} s")
        case "host hung":
            return failures.Failure(Outcome.CRASHED, f"{STARTER} does not answer")
        case "host ended":
            failure = failures.from_exit(account["code"], account["kernel_oom_kills"], account["output"])
            return replace(failure, reason=f"{STARTER} failed: {failure.reason}")
    return failures.from_exit(account["codes"][rank], account["kernel_oom_kills"], tail)


def log_tail(folder: Path, size: int = 4000) -> str:
    """The end of what an order's processes printed, so many bytes; empty where there is nothing."""
    with contextlib.suppress(OSError), (folder / LOG).open("rb") as file:
        file.seek(max(0, (folder / LOG).stat().st_size - size))
        return file.read().decode(errors="replace")
    return ""
