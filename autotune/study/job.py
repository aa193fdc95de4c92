"""Steps of a search, between which it chooses: a trial begins, a measurement runs or is known, or the search waits or ends."""

import math
from dataclasses import dataclass, field

from autotune.core import Configuration, Interval, Measurement
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot
from autotune.core.stop_reason import StopReason


@dataclass(frozen=True)
class Begin:
    """A trial that is begun, and starts once as many devices are idle as it has ranks."""

    slot: Slot
    configuration: Configuration
    risk: float | None = None  #: probability that it fits, of a trial that is tried although it may not
    gap: OptimalityGap | None = None  #: what the untried could win before it


@dataclass(frozen=True)
class Run(Begin):
    """A measurement that devices make now.

    whole_speed, losses: as in ProbeOptions. seconds: that it may take. share: of the best trial's speed that its configuration
    surely reaches on its device.
    """

    devices: tuple[str, ...] = ()
    message: str = ""
    whole_speed: Interval | None = None
    losses: int = 0
    seconds: float = math.inf
    share: float = 1.0
    may_not_fit: bool = False  #: whether another one that may not fit has to wait for its end


@dataclass(frozen=True)
class Known(Begin):
    """A measurement that is known without a training."""

    measurement: Measurement = field(kw_only=True)


@dataclass(frozen=True)
class Wait:
    """No step: something that runs has to end first."""


@dataclass(frozen=True)
class Done:
    """The end of a search. left_out: what there was no time for."""

    reason: StopReason
    left_out: tuple[str, ...] = ()
    gap: OptimalityGap | None = field(default=None, compare=False)


NextStep = Begin | Run | Known | Wait | Done
