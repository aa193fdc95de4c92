"""A limited time that passes only while a probe or a training runs, as long as it says that it took."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.failures import Failure
from autotune.core.time_limit import TimeLimit
from autotune.probe import ProbeOptions


@dataclass(frozen=True)
class SimulatedTime(TimeLimit):
    """passed: seconds since the command began, one number that `spend` changes."""

    passed: list[float] = field(default_factory=lambda: [0.0])

    def seconds_left(self) -> float:
        assert self.seconds is not None
        return max(0.0, self.seconds - self.passed[0])

    def spend(self, seconds: float) -> None:
        self.passed[0] += seconds


class TimedProbe:
    """A probe that takes the time that its measurements say, and is killed at its deadline.

    asked: number and round (0: none) of all that were asked for. killed: of those that were.
    """

    def __init__(self, time: SimulatedTime, world: Callable[[Configuration, ProbeOptions], Measurement]) -> None:
        self.time, self.world = time, world
        self.asked: list[tuple[int, int]] = []
        self.killed: list[tuple[int, int]] = []

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        place = (options.slot.number, options.slot.round)
        self.asked.append(place)
        measurement = self.world(configuration, options)
        if measurement.probe_seconds > options.deadline_s:
            self.killed.append(place)
            reason = f"not done after {options.deadline_s:.0f} s"
            measurement = Measurement(Outcome.TIMED_OUT, reason, probe_seconds=options.deadline_s)
        self.time.spend(measurement.probe_seconds)
        return measurement

    @property
    def rounds(self) -> list[tuple[int, int]]:
        return [(number, one_round) for number, one_round in self.asked if one_round]


class TimedTrainings:
    """Trainings of other kinds, each of so many seconds or killed at its deadline; asked: their kinds, in order."""

    def __init__(
        self,
        time: SimulatedTime,
        answers: Callable[[str, Configuration, Path, float, Mapping[str, Any]], tuple[Any, Failure | None]],
        seconds: float,
    ) -> None:
        self.time, self.answers, self.seconds = time, answers, seconds
        self.asked: list[str] = []

    def __call__(
        self, kind: str, configuration: Configuration, folder: Path, deadline_s: float, request: Mapping[str, Any]
    ) -> tuple[Any, Failure | None]:
        self.asked.append(kind)
        self.time.spend(min(self.seconds, deadline_s))
        if self.seconds > deadline_s:
            return None, Failure(Outcome.TIMED_OUT, f"not done after {deadline_s:.0f} s")
        return self.answers(kind, configuration, folder, deadline_s, request)


def taking(measurement: Measurement, seconds: float) -> Measurement:
    """The same, of a probe that took so many seconds in all, nearly none of them in its steps."""
    steps = tuple(replace(step, seconds=step.seconds / 1000) for step in measurement.steps)
    return replace(measurement, steps=steps, probe_seconds=seconds)
