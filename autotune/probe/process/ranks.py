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
from statistics import fmean
from typing import Any

from autotune.core import Measurement, Outcome
from autotune.core.failures import Failure

GRAVEST = (
    Outcome.OUT_OF_MEMORY,
    Outcome.UNSUPPORTED,
    Outcome.MISCONFIGURED,
    Outcome.NON_FINITE_LOSS,
    Outcome.TIMED_OUT,
)
"""What decides where ranks ended in different ways: one that meets a limit makes the others lose their connection."""

LOST_CONNECTION = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)( by peer)?|broken pipe|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)
"""How gloo (gloo/transport/tcp/pair.cc) and NCCL (its ncclRemoteError) say that another rank is gone."""

_STOP = "last-step"


def free_port() -> int:
    """A port on the loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def variables(rank: int, ranks: int, port: int, meeting: Path) -> dict[str, str]:
    """What torchrun sets for a rank on one machine, and where ranks of a probe agree on their last step."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    texts = {"MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0", "AUTOTUNE_MEETING": str(meeting)}
    return texts | {name: str(number) for name, number in numbers.items()}


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
    order = {outcome: place for place, outcome in enumerate(GRAVEST)}
    failed = [rank for rank, end in enumerate(ends) if end.outcome is not Outcome.COMPLETED] or [0]
    return min(
        failed,
        key=lambda rank: (order.get(ends[rank].outcome, len(order)), bool(LOST_CONNECTION.search(ends[rank].reason))),
    )


def merge_ranks(ranks: Sequence[Measurement]) -> Measurement:
    """What ranks that all completed measured: rank 0's steps, the highest peak, the sum of energy, every warning."""
    largest = max(ranks, key=lambda rank: rank.peak_bytes or 0)
    stages = dict.fromkeys(stage for rank in ranks for stage in rank.stage_peak_bytes)
    joules = [rank.joules for rank in ranks if rank.joules is not None]
    return replace(
        ranks[0],
        peak_allocated_bytes=_highest(ranks, "peak_allocated_bytes"),
        peak_reserved_bytes=_highest(ranks, "peak_reserved_bytes"),
        peak_device_bytes=largest.peak_device_bytes,
        peak_file_bytes=largest.peak_file_bytes,
        stage_peak_bytes={stage: max(rank.stage_peak_bytes.get(stage, 0) for rank in ranks) for stage in stages},
        micro_batch_bytes=max(rank.micro_batch_bytes for rank in ranks),
        allocator_retries=sum(rank.allocator_retries for rank in ranks),
        joules=sum(joules) if len(joules) == len(ranks) else None,
        losses=tuple(fmean(losses) for losses in zip(*(rank.losses for rank in ranks), strict=False)),
        observed_warnings=tuple(dict.fromkeys(warning for rank in ranks for warning in rank.observed_warnings)),
    )


def _highest(ranks: Sequence[Measurement], name: str) -> int | None:
    return max((value for rank in ranks if (value := getattr(rank, name)) is not None), default=None)


def merge_values(values: Sequence[Any]) -> Any:
    """The plain data of a sanity check that ranks carried out together: the highest of their peaks, all problems."""
    first: Mapping[str, Any] = values[0]
    parts = dict.fromkeys(part for value in values for part in value["peak_bytes"])
    return {
        **first,
        "peak_bytes": {part: max(value["peak_bytes"].get(part, 0) for value in values) for part in parts},
        "problems": [problem for value in values for problem in value["problems"]],
    }
