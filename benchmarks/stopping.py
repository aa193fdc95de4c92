"""How many timed steps adaptive stopping saves, with what answers, and how often its intervals cover the long run.

python benchmarks/stopping.py: replays recorded step times (tests/data/step_times.json, of real trainings) through
the same functions that stop a probe, from many starting points; takes seconds, needs no idle machine. Intervals are
fitted on every other recording (`--fit` shows how) and judged on the rest.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median

from machine import write_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune.core.interval import MEMORY, Interval, ratio_interval  # noqa: E402
from autotune.probe.order import Timing  # noqa: E402
from autotune.probe.train.adaptive import Decision, decide, settled  # noqa: E402

RECORDED = ROOT / "tests" / "data" / "step_times.json"
SAMPLES = 8
FIXED = 20
EVERY = 5
"""A simulated probe begins at every so manieth step of a recording."""
SAME = 0.03
"""Speeds over the whole recording that differ by less are the same answer."""


@dataclass(frozen=True)
class Recording:
    """The step times of one training, in seconds, from its very first step."""

    occasion: int
    model: str
    configuration: str
    step_times_s: tuple[float, ...]

    @property
    def long_run(self) -> float:
        """Samples / second over the whole training but its first steps."""
        return SAMPLES / fmean(self.step_times_s[5:])


@dataclass(frozen=True)
class Stopped:
    """A simulated probe: its timed steps, its speed, and whether it gave up."""

    steps: int
    speed: Interval
    hopeless: bool


def probed(times: Sequence[float], best: Interval | None, timing: Timing) -> Stopped:
    """What a probe that begins here would have done."""
    untimed = 1
    while not settled(times[:untimed], timing):
        untimed += 1
    timed: list[float] = []
    for seconds in times[untimed:]:
        timed.append(seconds)
        speed = ratio_interval([SAMPLES] * len(timed), timed)
        decision = decide(speed, len(timed), sum(timed), timing, best.low if best else None)
        if decision is not Decision.GO_ON:
            break
    return Stopped(len(timed), speed, decision is Decision.HOPELESS)


def searches(recordings: Sequence[Recording], timing: Timing) -> Iterator[tuple[list[Stopped], Recording]]:
    """Simulated searches of one model's configurations: their probes, and the recording of the fastest."""
    length = min(len(recording.step_times_s) for recording in recordings) - timing.untimed_most - timing.timed_most
    for shift in range(0, max(1, length), EVERY):
        stopped: list[Stopped] = []
        best: tuple[Interval, Recording] | None = None
        for place, one in enumerate(recordings):
            begin = (shift + 7 * place) % length if shift else 0
            probe = probed(one.step_times_s[begin:], best[0] if best else None, timing)
            stopped.append(probe)
            if not probe.hopeless and (best is None or probe.speed > best[0]):
                best = (probe.speed, one)
        assert best is not None
        yield stopped, best[1]


def covered(recordings: Sequence[Recording], interval: Callable[[list[float]], Interval], steps: int) -> list[bool]:
    """Whether the interval of so many steps holds the long run's speed, from many starting points."""
    held = []
    for recording in recordings:
        times = recording.step_times_s[5:]
        for begin in range(0, len(times) - steps + 1, EVERY):
            speed = interval(list(times[begin : begin + steps]))
            held.append(speed.low <= recording.long_run <= speed.high)
    return held


def with_memory(memory: float) -> Callable[[list[float]], Interval]:
    return lambda times: ratio_interval([SAMPLES] * len(times), times, memory)


def share(held: Sequence[bool]) -> str:
    return f"{sum(held) / len(held):.1%}"


def main() -> None:
    recordings = [
        Recording(load["occasion"], load["model"], load["configuration"], tuple(load["step_times_s"]))
        for load in json.loads(RECORDED.read_text(encoding="utf-8"))
    ]
    recordings.sort(key=lambda one: (one.model, one.occasion))
    searched = groupby(recordings, key=lambda one: (one.model, one.occasion))
    models = {f"{model}, occasion {occasion}": list(group) for (model, occasion), group in searched}
    fitted_on, judged_on = recordings[::2], recordings[1::2]
    if "--fit" in sys.argv:
        for memory in (0.5, 0.6, 0.7, 0.8, 0.85, 0.87, 0.88, 0.89, 0.9, 0.91, 0.92, 0.93):
            found = ", ".join(
                f"{steps} steps {share(covered(fitted_on, with_memory(memory), steps))}" for steps in (3, 5, 8, 12, 24)
            )
            print(f"memory {memory}: {found}")
        return
    rows = [*saved(models), "", *coverage(judged_on), ""]
    counts = [len(recording.step_times_s) for recording in recordings]
    rows.append(
        f"{len(recordings)} recordings of {min(counts)} to {max(counts)} steps (tests/data/step_times.json). MEMORY = "
        f"{MEMORY} is fitted on every other recording, coverage is judged on the rest; the long run is the whole recording."
    )
    write_table(ROOT / "reports" / "stopping.md", "Stopping when enough is known", rows)


def saved(models: dict[str, list[Recording]]) -> list[str]:
    """The table of searches: steps, and answers against those of a fixed number of steps."""
    fixed = Timing(untimed_least=3, untimed_most=3, timed_least=FIXED, timed_most=FIXED, target=0.0)
    rows = [
        "| model | timed steps a probe | given up | saved | as good an answer | the answer's loss | with 20 steps |"
    ]
    rows.append("|---|---|---|---|---|---|---|")
    steps: list[int] = []
    same: list[bool] = []
    for model, group in models.items():
        fastest = max(item.long_run for item in group)
        pairs = list(zip(searches(group, Timing()), searches(group, fixed), strict=False))
        taken = [probe.steps for (stopped, _), _ in pairs for probe in stopped]
        given_up = [probe.hopeless for (stopped, _), _ in pairs for probe in stopped]
        agree = [ours.long_run >= (1 - SAME) * theirs.long_run for (_, ours), (_, theirs) in pairs]
        losses = [fmean(1 - found[which][1].long_run / fastest for found in pairs) for which in (0, 1)]
        rows.append(
            f"| {model} | {fmean(taken):.1f} | {share(given_up)} | {1 - fmean(taken) / FIXED:.0%} "
            f"| {share(agree)} of {len(agree)} | {losses[0]:.1%} | {losses[1]:.1%} |"
        )
        steps += taken
        same += agree
    less = 1 - fmean(steps) / FIXED
    return [
        *rows,
        "",
        f"Over all: {less:.0%} fewer timed steps than a fixed {FIXED}; as good an answer (within {SAME:.0%}) "
        f"in {share(same)} of {len(same)} simulated searches.",
    ]


def coverage(recordings: Sequence[Recording]) -> list[str]:
    """The table of intervals: how many hold the long run's speed, by number of steps and as probes stop."""
    rows = ["| timed steps | the declared 95 % interval covers | the textbook's (independent steps) |", "|---|---|---|"]
    for count in (3, 5, 8, 12, 24):
        declared, textbook = (share(covered(recordings, with_memory(memory), count)) for memory in (MEMORY, 0.5))
        rows.append(f"| {count} | {declared} | {textbook} |")
    ended = [
        (recording.long_run, probed(recording.step_times_s[begin:], None, Timing()).speed)
        for recording in recordings
        for begin in range(0, len(recording.step_times_s) - 40, EVERY)
    ]
    held = [speed.low <= truth <= speed.high for truth, speed in ended]
    width = median(speed.relative_width / 2 for _, speed in ended)
    return [
        *rows,
        "",
        f"Probes as they stop: {share(held)} of {len(held)} intervals cover the long run's speed; "
        f"median half-width {width:.1%}.",
    ]


if __name__ == "__main__":
    main()
