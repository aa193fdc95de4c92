"""Device: one of several on which a search measured."""

from dataclasses import dataclass

from autotune.core.io import Serializable
from autotune.core.reason import Kind, Reason


class LeftOutKind(Kind):
    """Kind of reason why a device is not used any more."""

    LOST = "lost", "{detail}"
    FAULTS = "faults", "{trainings:.0f} trainings failed there that ran on another device"
    FAILED = "failed", "trial {trial:.0f}, which ran on another device, failed there"
    SLOWER = "slower", "{difference:.0%} slower than the others (throttled, or shared?)"
    FASTER = "faster", "{difference:.0%} faster than the others (throttled, or shared?)"


@dataclass(frozen=True)
class LeftOut(Reason):
    """Reason why a device is not used any more. detail: how it was lost."""

    kind: LeftOutKind


@dataclass(frozen=True)
class Device(Serializable):
    """One of several devices of a search."""

    name: str  #: as the table of trials names it
    factor: float = 1.0  #: its speed / the mean of all devices
    low: float = 1.0  #: 95 % interval of the factor
    high: float = 1.0  #: its upper end
    trials: int = 0  #: that it probed
    rounds: int = 0  #: measurements made again
    left_out: LeftOut | None = None  #: why it was not used to the end; None if it was
