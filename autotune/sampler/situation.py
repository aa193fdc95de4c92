"""Conditions of the next measurement, in addition to what was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.core import Configuration, Trial
from autotune.judge.constants import SAME_SPEED


@dataclass(frozen=True)
class Situation:
    """Conditions of the next measurement, in addition to the standing."""

    running: Mapping[str, Configuration] = field(default_factory=dict)  # device -> what is measured there now
    calibrations: Sequence[
        Trial
    ] = ()  # measurements of several devices to be compared with each other, no part of a claim
    device: str = ""  # that measures next, of several
    at_s: float | None = None  # the time now, on the clock of Observation.started_s; None: not known
    seconds_left: float = math.inf  # of the time limit
    repeat_seconds: Mapping[Configuration, float] = field(
        default_factory=dict
    )  # of what was measured, if not as the first time
    run_s: float | None = None  # of the training that follows; None: as the training steps say, else two hours
    risks: int = 0  # tries of what may not fit that are left
    probes_left: float = math.inf  # configurations that may still be measured first
    margin: float = SAME_SPEED  # share of the speed that is not worth a measurement
    min_repeats: int = 2  # pairs of winner and baseline that a claim needs at least; 0: nothing is measured again
    effects: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # device -> how its speed differs, with error
    flagged: Sequence[Configuration] = ()  # they do not learn as they should: nothing that learns alike can win
    seed: int = 0  # of random draws


ALONE = Situation()
"""One device that has nothing to do, and no limits."""
