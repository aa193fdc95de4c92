"""Device: one of several on which a search measured."""

from dataclasses import dataclass

from autotune.core.io import Serializable


@dataclass(frozen=True)
class Device(Serializable):
    """One of several devices of a search."""

    name: str  #: as the table of trials names it
    factor: float = 1.0  #: its speed / the mean of all devices
    low: float = 1.0  #: 95 % interval of the factor
    high: float = 1.0  #: its upper end
    trials: int = 0  #: that it probed
    rounds: int = 0  #: measurements made again
    left_out: str = ""  #: reason why it was not used to the end; empty if it was
