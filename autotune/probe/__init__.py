"""Probe: the one seam between the loop that chooses and the world that measures."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the supervisor, which the start of a search waits for, imports this package
    from autotune.core import Configuration, Interval, Measurement
    from autotune.core.slot import Slot


@dataclass(frozen=True)
class ProbeOptions:
    """How to measure, as opposed to what.

    slot: which measurement of the study it is; a round of the confirmation has more steps than a probe, and all micro-steps
    unless there is a whole_speed. deadline_s: seconds after which the probe is killed. best_so_far: speed of the best trial
    (samples or tokens / second, as the objective counts); a probe that cannot reach it may end itself. whole_speed: samples /
    second of the trial's rounds that ran all micro-steps: this round may run few of them, and must agree. losses: steps of a
    confirmation round that is run for their losses alone; 0: its speed is measured.
    """

    slot: "Slot"
    deadline_s: float
    best_so_far: "Interval | None" = None
    whole_speed: "Interval | None" = None
    losses: int = 0


class Probe(Protocol):
    """Measures a configuration: `probe(configuration, options) -> Measurement`, never raising for what a probe met."""

    def __call__(self, configuration: "Configuration", options: ProbeOptions) -> "Measurement": ...
