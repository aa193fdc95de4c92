"""Several ranks of one training: what makes a process a rank, when all of them stop, and their answers as one.

rank 0:  step n ends, enough is known: "stop at n + 1" --> step n + 1 --> stops, answers
rank 1:  step n .......................................--> step n + 1 --> reads it, stops, answers

A rank alone must not stop: the others would wait for its gradients for ever. Nobody asks the others either, which would
take time that a real training does not: rank 0 says it in a file before it joins the next step's exchange of gradients, and
no rank ends that step without rank 0 having joined.
"""

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core.failures import Failure
from autotune.core.measurement import Measurement, Outcome

GRAVEST = (
    Outcome.OUT_OF_MEMORY,
    Outcome.UNSUPPORTED,
    Outcome.MISCONFIGURED,
    Outcome.NON_FINITE_LOSS,
    Outcome.TIMED_OUT,
)
"""What decides where ranks ended in different ways: one that meets a limit makes the others lose their connection."""

LEFT_BY_OTHERS = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)( by peer)?|broken pipe|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)
"""How gloo (gloo/transport/tcp/pair.cc) and NCCL (its ncclRemoteError) say that another rank is gone."""

_STOP = "last-step"


def free_port() -> int:
    """A port on the loopback that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def variables(rank: int, ranks: int, port: int, meeting: Path) -> dict[str, str]:
    """What torchrun sets for a rank on one machine, and where ranks of a probe agree on their last step."""
    known = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    told = {name: str(value) for name, value in known.items()}
    return told | {"MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0", "AUTOTUNE_MEETING": str(meeting)}


def this_rank() -> int:
    """The rank of this process, 0 where it is the only one."""
    return int(os.environ.get("RANK", "0"))


class LastStep:
    """The step after which all ranks stop: rank 0 sets it, all obey. Alone, a process stops at once."""

    def __init__(self) -> None:
        meeting = os.environ.get("AUTOTUNE_MEETING")
        self._file = Path(meeting) / _STOP if meeting else None

    def announce(self, step: int) -> bool:
        """Rank 0, at the end of this step: the next one is the last. Whether this one is already: where there are no others."""
        if self._file is None:
            return True
        beside = self._file.with_suffix(".new")
        beside.write_text(str(step + 1))
        beside.replace(self._file)
        return False

    def reached(self, step: int) -> bool:
        """Whether this step, which has ended, is the one announced."""
        if self._file is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return step >= int(self._file.read_text())
        return False


# Their answers as one ---------------------------------------------------------------------------------------------


def decisive(ends: Sequence[Measurement | Failure]) -> int:
    """Which of several ranks' ends decides: the first of the gravest; ranks that completed decide nothing.

    One that only lost its connection decides where no other failed: it tells of another rank's end, and may be noticed first.
    """
    order = {outcome: at for at, outcome in enumerate(GRAVEST)}
    able = [at for at, end in enumerate(ends) if end.outcome is not Outcome.COMPLETED] or [0]
    return min(
        able, key=lambda at: (order.get(ends[at].outcome, len(order)), bool(LEFT_BY_OTHERS.search(ends[at].reason)))
    )


def together(of_ranks: Sequence[Measurement]) -> Measurement:
    """What ranks that all completed measured: rank 0's steps, the hungriest one's peak, every warning of any."""
    hungriest = max(of_ranks, key=lambda one: one.peak_bytes or 0)
    stages = dict.fromkeys(stage for one in of_ranks for stage in one.stage_peak_bytes)
    joules = [one.joules for one in of_ranks if one.joules is not None]
    return replace(
        of_ranks[0],
        peak_allocated_bytes=_highest(of_ranks, "peak_allocated_bytes"),
        peak_reserved_bytes=_highest(of_ranks, "peak_reserved_bytes"),
        peak_device_bytes=hungriest.peak_device_bytes,
        peak_file_bytes=hungriest.peak_file_bytes,
        stage_peak_bytes={stage: max(one.stage_peak_bytes.get(stage, 0) for one in of_ranks) for stage in stages},
        micro_batch_bytes=max(one.micro_batch_bytes for one in of_ranks),
        allocator_retries=sum(one.allocator_retries for one in of_ranks),
        joules=sum(joules) if len(joules) == len(of_ranks) else None,
        observed_warnings=tuple(dict.fromkeys(warning for one in of_ranks for warning in one.observed_warnings)),
    )


def _highest(of_ranks: Sequence[Measurement], name: str) -> int | None:
    return max((value for one in of_ranks if (value := getattr(one, name)) is not None), default=None)


def of_rank(rank: int, failure: Failure) -> Failure:
    """The failure with the rank's name."""
    return replace(failure, reason=f"rank {rank}: {failure.reason}")


def value_together(kind: str, values: Sequence[Any]) -> Any:
    """The plain data of an order that ranks carried out together: the mean of their losses, the highest of their peaks."""
    first: Mapping[str, Any] = values[0]
    if kind == "numerics":
        steps = zip(*(one["losses"] for one in values), strict=True)
        losses = [sum(map(float, step)) / len(values) for step in steps]
        return {
            **first,
            "losses": [str(loss) if loss != loss or abs(loss) == float("inf") else loss for loss in losses],
        }
    peaks = dict.fromkeys(part for one in values for part in one["peak_bytes"])
    return {
        **first,
        "peak_bytes": {part: max(one["peak_bytes"].get(part, 0) for one in values) for part in peaks},
        "problems": [problem for one in values for problem in one["problems"]],
    }
