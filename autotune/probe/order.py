"""Orders from the parent to child processes, and the files of their answers.

    parent --order.json--> host --fork--> child --answer.json--> parent (measurement.json)

All files are written whole or not at all; standard output is only a log.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from autotune.core import Configuration, Environment, Serializable, Workload
from autotune.core.kept import Held

ORDER, ANSWER, LOG = "order.json", "measurement.json", "log.txt"
STAGE = "stage: {}"
"""Line of a probe's log where a stage begins for the first time."""

_UNFINISHED = re.compile(r"\..+\.\d+")  # as `write_json` names them, and what writes a report
CHILD_ANSWER = "answer.json"
"""Written by the child; the parent adds what only it can know, and writes the measurement."""

UNTOUCHED_BYTES = 34 << 20
"""Address space that a training on a CPU reserves and does not touch (its threads' stacks, the heaps' ends): it counts against
RLIMIT_DATA and is none of the peak. 24 to 35 MiB in six trainings of a small model, whatever their peak (110 to 340 MiB)."""

TRAINED_BY_RANKS = ("probe", "sanity_check")
"""Kinds of orders that one process for each rank of the configuration carries out."""


@dataclass(frozen=True)
class Timing(Serializable):
    """Duration of a probe's training.

    Untimed steps end once a step's time has settled, timed ones once the half-width of the speed's 95 % interval is
    below `target` (a share of the speed) or after `seconds`; both between their least and most numbers of steps. Timed ones go
    on until they have taken `timed_seconds_least`; untimed ones, if there are windows of `window_s`, until the last two of these
    agree or they have taken `untimed_seconds_most` (without the first step).
    """

    untimed_least: int = 3
    untimed_most: int = 8
    timed_least: int = 5
    timed_most: int = 24
    target: float = 0.02
    seconds: float = 20.0
    window_s: float = 0.0
    untimed_seconds_most: float = 0.0
    timed_seconds_least: float = 0.0


CONFIRMATION = Timing(untimed_least=4, timed_least=8, timed_most=16, target=0.02, seconds=4.0)
"""One round of several: rounds apart in time tell more about a speed than as many steps in a row."""

CUDA_PROBE = Timing(untimed_least=2, timed_least=3, window_s=0.4, untimed_seconds_most=1.5, timed_seconds_least=1.0)
CUDA_CONFIRMATION = replace(
    CONFIRMATION, untimed_least=2, window_s=1.0, untimed_seconds_most=12.0, timed_seconds_least=3.0
)
"""A GPU that was idle while a process started runs its first steps at clocks that it does not keep: power and heat settle
in seconds, not in steps. A round trains on while its speed falls, at most 12 s. A probe's speed is that of its first seconds: on
a card whose clock falls by a seventh within ten seconds it is 9 % too high with steps of a second, and 13 % with short ones. The
timed steps are long enough for its energy counter (JOULES_LEAST_S). GPUs' steps of one shape differ by less than a per cent:
three of them tell a probe's speed."""


LOSSES = Timing(untimed_least=1, untimed_most=1, timed_least=9, timed_most=9, seconds=20.0)
"""A training for its losses alone: ten steps, fewer if they are long, but as many as a comparison needs at least
(`loss_curves.LEAST_STEPS`: the untimed one and those of `adaptive.HOPELESS_LEAST`)."""


def timings(is_cpu: bool) -> tuple[Timing, Timing]:
    """Durations of a probe and of a confirmation round on such a device."""
    return (Timing(), CONFIRMATION) if is_cpu else (CUDA_PROBE, CUDA_CONFIRMATION)


@dataclass(frozen=True, kw_only=True)
class Order(Serializable):
    """Task of a child process.

    kind: `probe` answers with a Measurement, `prepare` with a Workload, `capabilities` with an Environment; the other kinds
    with the plain data that the module in `ANSWERED_BY` describes. request: the options of every kind but `probe`.
    folder: absolute; where order, answer and log are written (not stored: a report folder may move).
    sent_at: monotonic clock of the machine, seconds. training_arguments: as in the result.
    process_environment: variables that the child sets; host_environment: those that it must be started with.
    data_arguments, adapter, switches: see `TrainingSetup`; the adapter is empty if all weights are trained.
    accumulation_steps_run: micro-steps in a step of the probe, at most the configuration's.
    allowed_bytes: limit x (1 - headroom). device_used_bytes: in use on the device before; None on a CPU or if unknown.
    held: see `ProbeOptions`.
    speed_to_reach: samples / second (tokens / second if `count_tokens`) below which a probe may end itself.
    without: classes of the user's callbacks that are left out, as they failed before.
    """

    kind: str
    folder: str
    deadline_s: float
    sent_at: float = 0.0
    number: int = 0
    confirmation: int = 0
    configuration: Configuration | None = None
    training_arguments: Mapping[str, Any] = field(default_factory=dict)
    model_arguments: Mapping[str, Any] = field(default_factory=dict)
    process_environment: Mapping[str, str] = field(default_factory=dict)
    host_environment: Mapping[str, str] = field(default_factory=dict)
    data_arguments: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, bool] = field(default_factory=dict)
    workload: Workload | None = None
    environment: Environment | None = None
    accumulation_steps_run: int = 1
    allowed_bytes: int | None = None
    device_used_bytes: int | None = None
    timing: Timing = Timing()
    count_tokens: bool = False
    speed_to_reach: float | None = None
    held: Held | None = None
    without: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Number of processes that carry it out together."""
        together = self.configuration is not None and self.kind in TRAINED_BY_RANKS
        return self.configuration.data_parallel_size if together and self.configuration else 1

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name != "folder"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], folder: Path = Path()) -> Self:
        return super().from_dict({**data, "folder": str(folder)})


class TrainingOrder(Order):
    """An order that trains a configuration: none of these fields is None."""

    configuration: Configuration
    workload: Workload
    environment: Environment


def answer_name(rank: int) -> str:
    """The file in which a rank leaves its answer."""
    return f"answer-{rank}.json" if rank else CHILD_ANSWER


def remove_answers(folder: Path) -> None:
    """Remove the answers in this folder; raises OSError if the disk refuses."""
    for path in (folder / CHILD_ANSWER, *folder.glob("answer-*.json")):
        path.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the half-written files of killed writers below a folder in which nobody else writes."""
    for path in folder.rglob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()
