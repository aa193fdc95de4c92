"""Jobs of a search: the steps between which it chooses."""

import math
from dataclasses import dataclass, field

from autotune.core import Configuration, Interval, Measurement
from autotune.core.io import Serializable
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot
from autotune.core.stop_reason import StopReason


@dataclass(frozen=True)
class Round(Serializable):
    """A round of the confirmation that has not ended: trials that are measured one after the other on one device.

    A round whose device is lost is measured again as a whole on another one.
    """

    number: int  #: from 1
    trials: tuple[int, ...] = ()  #: numbers, in their order; none: the losses' reference alone
    devices: tuple[str, ...] = ()  #: as many as the most ranks take, all else runs on the first; none before it begins
    composed: bool = False  #: whether long steps run few of their micro-steps


@dataclass(frozen=True)
class Job:
    """A measurement to make.

    whole_speed, losses: as in ProbeOptions. seconds: that it may take. share: of the best trial's speed that its configuration
    surely reaches on its device. answer: what it comes to if that is known without a training. rounds: of the confirmation,
    planned or begun with this job.
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
    rounds: tuple[Round, ...] = ()
    gap: OptimalityGap | None = None  #: what the untried could win before it


@dataclass(frozen=True)
class CloseRound:
    """A round that is complete, or one to drop because its device was lost: it is measured again."""

    round: Round
    is_lost: bool = False


@dataclass(frozen=True)
class Wait:
    """Nothing can begin before something that runs has ended."""


@dataclass(frozen=True)
class Done:
    """The end of a search. left_out: what there was no time for."""

    reason: StopReason
    left_out: tuple[str, ...] = ()
    gap: OptimalityGap | None = field(default=None, compare=False)


Step = Job | CloseRound | Wait | Done
