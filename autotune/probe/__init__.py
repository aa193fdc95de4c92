"""The seam between the loop that chooses and the world that measures: Probe measures, Host carries out orders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the supervisor, which the start of a search waits for, imports this package
    from pathlib import Path

    from autotune.core import Configuration, Interval, Measurement
    from autotune.core.kept import Held
    from autotune.core.slot import Slot
    from autotune.core.time_limit import TimeLimit
    from autotune.probe.order import Order


@dataclass(frozen=True)
class ExitInfo:
    """End of an order.

    ended: exited, timed out, stopped, host ended, host hung or not started; seconds: that it took; codes: exit code or
    -signal of each rank, None if it was ended, or of the dead host; kernel_oom_kills: meanwhile; reason: why it was not
    started; output: the end of a dead host's output; killed: how often it was repeated because something else killed or
    stopped it.
    """

    ended: str
    seconds: float = 0.0
    codes: Sequence[int | None] = ()
    kernel_oom_kills: int = 0
    reason: str = ""
    output: str = ""
    killed: int = 0


class Host(Protocol):
    """Carries out orders in child processes, one at a time. `ask` and `attempt` (process/answers.py) read the answers.

    time_limit: of the command; no order outlasts it. uses_cache: whether its children's answers are cached, and the cache is
    consulted instead of them.
    """

    time_limit: "TimeLimit"
    uses_cache: bool

    def run(self, order: "Order") -> ExitInfo:
        """Carry an order out, with the answers in its folder: how it ended. Raises ProbeHostFailed."""
        ...

    def scratch_folder(self) -> "Path":
        """A new folder that is gone with the host, however this process ends."""
        ...

    def background_host(self) -> "Host | None":
        """A further host, for orders that take no device, for another thread. None if all orders must be this one's."""
        ...

    def abandon(self) -> None:
        """End what runs, from any thread, and start nothing more: nothing of it runs on the device soon after."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True)
class ProbeOptions:
    """Options of a measurement, apart from what is measured.

    slot: which measurement of the study it is; a round of the confirmation has more steps than a probe, and all micro-steps
    unless there is a whole_speed. deadline_s: seconds after which the probe is killed. best_so_far: speed of the best trial
    (samples or tokens / second, as the objective counts); a probe that cannot reach it may end itself. whole_speed: samples /
    second of the trial's rounds that ran all micro-steps: this round may run few of them, and must agree. losses: steps of a
    confirmation round that is run for their losses alone; 0: its speed is measured. held: contents of the micro-batches of the
    first trial of the user's objects that trained; None: this is the first.
    """

    slot: "Slot"
    deadline_s: float
    best_so_far: "Interval | None" = None
    whole_speed: "Interval | None" = None
    losses: int = 0
    held: "Held | None" = None


class Probe(Protocol):
    """Measures a configuration: `probe(configuration, options) -> Measurement`, never raising for what a probe met."""

    def __call__(self, configuration: "Configuration", options: ProbeOptions) -> "Measurement": ...
