"""Parts of a step's time, for the best, the baseline and the other finalists."""

from autotune.core.trial import Trial
from autotune.core.units import three_digits
from autotune.report.figures.canvas import Drawing
from autotune.report.figures.rows import special_trials, stacked, trial_name
from autotune.study.result import SearchResult

PARTS = {
    "data wait": "data_wait_s",
    "forward": "forward_time_s",
    "backward": "backward_time_s",
    "optimizer": "optimizer_step_time_s",
    "overhead": "overhead_time_s",
}

LONG_S = 3.0
"""Seconds of a step from which on the unit is seconds."""


def draw(result: SearchResult) -> Drawing | None:
    """Mean time of a step and its parts, a bar a trial; None where no trial's forward and backward were timed."""
    finalists = [trial for trial in result.trials if trial.confirmed]
    by_number = {trial.number: trial for trial in (*special_trials(result), *finalists)}
    trials = [trial for trial in by_number.values() if trial.feasible and _is_timed(trial)]
    if not trials:
        return None
    steps = [trial.final.step_time_s or 0.0 for trial in trials]
    scale, unit, name = (1, "s", "seconds") if max(steps) >= LONG_S else (1000, "ms", "milliseconds")
    parts = [{part: scale * (getattr(trial.final, field) or 0.0) for part, field in PARTS.items()} for trial in trials]
    ends = [f"{three_digits(scale * seconds)} {unit}" for seconds in steps]
    figure = stacked([trial_name(result, trial) for trial in trials], parts, f"{name} of an optimizer step", ends)
    caption = (
        "The mean of the timed steps. Data wait is time in which the training waits for its next batch; overhead is the "
        "Trainer's own work between the parts. Behind each bar is the whole step."
    )
    return Drawing("step-time", "How a step's time divides", caption, figure)


def _is_timed(trial: Trial) -> bool:
    return bool(trial.final.forward_time_s or trial.final.backward_time_s)
