"""How a step's time divides, for the best, the baseline and the other finalists."""

from autotune.core.trial import Trial
from autotune.core.units import three_digits
from autotune.report.figures.canvas import Drawing
from autotune.report.figures.rows import stacked
from autotune.report.figures.words import told
from autotune.study.result import SearchResult

PARTS = {
    "data wait": "data_wait_s",
    "forward": "forward_time_s",
    "backward": "backward_time_s",
    "optimizer": "optimizer_step_time_s",
    "overhead": "overhead_time_s",
}

LONG_S = 3.0
"""Seconds of a step from which on they are told as such."""


def draw(result: SearchResult) -> Drawing | None:
    """Mean time of a step and its parts, a bar a trial; None where no trial's forward and backward were timed."""
    first = [one for one in (result.baseline_trial, result.best_trial) if one is not None]
    finalists = [one for one in result.trials if one.confirmed and one.feasible]
    rows = [one for one in {one.number: one for one in (*first, *finalists)}.values() if one.feasible and _timed(one)]
    if not rows:
        return None
    steps = [one.final.step_time_s or 0.0 for one in rows]
    scale, unit, name = (1, "s", "seconds") if max(steps) >= LONG_S else (1000, "ms", "milliseconds")
    parts = [{part: scale * (getattr(one.final, key) or 0.0) for part, key in PARTS.items()} for one in rows]
    ends = [f"{three_digits(scale * one)} {unit}" for one in steps]
    figure = stacked([told(result, one) for one in rows], parts, f"{name} of an optimizer step", ends)
    said = "The mean of the timed steps. Data wait is time in which the training stands still for its next batch; overhead is "
    said += "the Trainer's own work between the parts. Behind each bar stands the whole step."
    return Drawing("step-time", "How a step's time divides", said, figure)


def _timed(trial: Trial) -> bool:
    return bool(trial.final.forward_time_s or trial.final.backward_time_s)
