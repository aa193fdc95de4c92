"""What figures call trials and numbers, and which trials of many they name."""

from collections.abc import Iterable
from typing import Any

from autotune.core.trial import Trial
from autotune.report.figures.canvas import ACCENT, BASELINE, BEST
from autotune.study.objective import pareto_front
from autotune.study.result import SearchResult

MOST_NAMED = 10
"""Trials that a figure names, of however many: best, baseline, the Pareto front and the fastest others."""

NO_BASELINE = "baseline: does not fit"
"""What the legend calls a baseline without a speed to compare with."""


def told(result: SearchResult, trial: Trial) -> str:
    """`5 (best): 16 x 3, precision bf16`: a trial by what differs from the baseline."""
    base = result.baseline_trial
    is_base, is_best = _is(trial, base), _is(trial, result.best_trial)
    role = ", ".join(["baseline"] * is_base + ["best"] * is_best)
    what = trial.configuration.unlike(None if is_base or base is None else base.configuration)
    return f"{trial.number}{f' ({role})' if role else ''}: {what}"


def colour_of(result: SearchResult, trial: Trial) -> str:
    """The best's colour, the baseline's, or that of all others."""
    return BEST if _is(trial, result.best_trial) else BASELINE if _is(trial, result.baseline_trial) else ACCENT


def named(result: SearchResult) -> list[Trial]:
    """The trials that a figure has room to name, fastest first, then those without a speed in their order."""
    speeds = {one.number: speed_value(one) for one in result.trials}
    fast = sorted(result.trials, key=lambda one: -speeds[one.number])
    if len(fast) > MOST_NAMED:
        first = [one for one in (result.best_trial, result.baseline_trial) if one is not None]
        wanted = [*first, *pareto_front(fast), *(one for one in fast if speeds[one.number])]
        kept = list(dict.fromkeys(one.number for one in wanted))[:MOST_NAMED]
        fast = [one for one in fast if one.number in kept]
    return fast


def speed_value(trial: Trial) -> float:
    """Samples / second of a trial that fits, else 0."""
    speed = trial.samples_per_second if trial.feasible else None
    return float(speed) if speed is not None else 0.0


def wanted_bytes(trial: Trial) -> int:
    """What an out-of-memory held and was refused, bytes; 0 where neither is known."""
    return (trial.final.held_bytes or 0) + (trial.final.refused_bytes or 0)


def memory_unit(sizes: Iterable[float | None]) -> tuple[str, int]:
    """The name and bytes of the unit in which the largest of these sizes is told."""
    return ("GiB", 2**30) if max((size or 0 for size in sizes), default=0) >= 2**30 else ("MiB", 2**20)


def listed(names: Iterable[Any]) -> str:
    """`a, b and c`."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def _is(trial: Trial, other: Trial | None) -> bool:
    return other is not None and trial.number == other.number
