"""Jobs of a search: the steps between which it chooses."""

import math
from dataclasses import dataclass, field

from autotune.core import Configuration, Interval, Measurement
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot
from autotune.core.stop_reason import StopReason


@dataclass(frozen=True)
class Job:
    """A measurement to make.

    whole_speed, losses: as in ProbeOptions. seconds: that it may take. share: of the best trial's speed that its configuration
    surely reaches on its device. answer: what it comes to if that is known without a training.
    """

    slot: Slot
    configuration: Configuration
    devices: tuple[str, ...] = ()
    message: str = ""
    whole_speed: Interval | None = None
    losses: int = 0
    seconds: float = math.inf
    share: float = 1.0
    answer: Measurement | None = None
    risk: float | None = None  #: probability that it fits, of a probe that is tried although it may not
    may_not_fit: bool = False  #: whether another one that may not fit has to wait for its end
    gap: OptimalityGap | None = None  #: what the untried could win before it


@dataclass(frozen=True)
class Wait:
    """Nothing can begin before something that runs has ended."""


@dataclass(frozen=True)
class Done:
    """The end of a search. left_out: what there was no time for."""

    reason: StopReason
    left_out: tuple[str, ...] = ()
    gap: OptimalityGap | None = field(default=None, compare=False)


NextStep = Job | Wait | Done
