"""Ranks of one training: their variables, the step after which all stop, and the merging of their answers.

rank 0:  step n ends, writes "stop at n + 2" --> step n + 1 --> step n + 2 --> stops, answers
rank 1:  step n .............................--> step n + 1 --> step n + 2 --> reads it, stops, answers

A rank that stopped alone would leave the others waiting for its gradients. Rank 0 writes the last step to a file before it
joins the exchange of gradients of step n + 1. No device ends that step before, but a host may be steps ahead of its device: at
the end of step n + 2 each waits until its device has ended step n + 1. No communication is added.
"""

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from autotune.core import Measurement, Outcome, read_json, write_json
from autotune.core.failures import Failure
from autotune.core.warning import merged

GRAVEST = (
    Outcome.OUT_OF_MEMORY,
    Outcome.UNSUPPORTED,
    Outcome.MISCONFIGURED,
    Outcome.NON_FINITE_LOSS,
    Outcome.TIMED_OUT,
)
"""Outcomes, the one that decides when ranks ended differently first: if one fails, the others lose their connection."""

LOST_CONNECTION = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)( by peer)?|broken pipe|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)
"""Errors of gloo (gloo/transport/tcp/pair.cc) and NCCL (ncclRemoteError) when another rank is gone."""

AHEAD = 2
"""Steps that all ranks still train once rank 0 has announced the last one."""

_STOP = "last-step"


def free_port() -> int:
    """A free port of the loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def variables(rank: int, ranks: int, port: int, meeting: Path) -> dict[str, str]:
    """Variables that torchrun sets for a rank on one machine, and the folder where ranks agree on their last step."""
    values: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    values |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "AUTOTUNE_MEETING": meeting}
    return {name: str(value) for name, value in values.items()}


def this_rank() -> int:
    """The rank of this process; 0 if it is the only one."""
    return int(os.environ.get("RANK", "0"))


class LastStep:
    """The step after which all ranks stop, set by rank 0; a single process stops at once.

    meeting: the folder in which ranks agree, None for a single process. decides: whether this is rank 0.
    """

    def __init__(self, rank: int = 0, meeting: Path | None = None) -> None:
        self.decides = rank == 0
        self._file = meeting / _STOP if meeting else None

    @classmethod
    def of_this_process(cls) -> Self:
        """The last step of the rank that this process's variables name."""
        meeting = os.environ.get("AUTOTUNE_MEETING")
        return cls(this_rank(), Path(meeting) if meeting else None)

    def announce(self, step: int) -> bool:
        """Called by rank 0 at the end of a step: AHEAD steps follow. True in a single process, which stops now."""
        if self._file is None:
            return True
        write_json(self._file, step + AHEAD)
        return False

    def reached(self, step: int) -> bool:
        """True if this step, which has ended, is the last. Of another rank the device must have ended the step before."""
        if self._file is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return bool(step >= read_json(self._file))
        return False


def decisive(ends: Sequence[Measurement | Failure]) -> int:
    """Index of the failure that decides: the first of the gravest, and a lost connection only if nothing else failed."""

    def gravity(index: int) -> tuple[int, bool]:
        outcome = ends[index].outcome
        position = GRAVEST.index(outcome) if outcome in GRAVEST else len(GRAVEST)
        return position, bool(LOST_CONNECTION.search(ends[index].reason))

    return min([index for index, end in enumerate(ends) if end.outcome is not Outcome.COMPLETED] or [0], key=gravity)


def merge_ranks(ranks: Sequence[Measurement]) -> Measurement:
    """Merge completed ranks: steps of rank 0, the highest peaks, the sum of energy, all warnings."""
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
        observed_warnings=merged(warning for rank in ranks for warning in rank.observed_warnings),
    )


def _highest(ranks: Sequence[Measurement], name: str) -> int | None:
    return max((value for rank in ranks if (value := getattr(rank, name)) is not None), default=None)


def merge_values(values: Sequence[Any]) -> Any:
    """Merge the sanity checks of several ranks: the highest of their peaks, all problems."""
    first: Mapping[str, Any] = values[0]
    parts = dict.fromkeys(part for value in values for part in value["peak_bytes"])
    return {
        **first,
        "peak_bytes": {part: max(value["peak_bytes"].get(part, 0) for value in values) for part in parts},
        "problems": [problem for value in values for problem in value["problems"]],
    }
