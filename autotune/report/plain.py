"""What `--json` prints of trials and speed-up, as plain data."""

from typing import Any

from autotune.core.trial import Trial
from autotune.core.units import finite
from autotune.space.launch import accelerate_line, launch_line
from autotune.study.result import SearchResult


def plain_trial(trial: Trial | None) -> dict[str, Any] | None:
    """A trial's configuration, outcome, speed (samples / second) and peak (bytes)."""
    if trial is None:
        return None
    speed = trial.samples_per_second
    return trial.configuration.to_dict() | {
        "number": trial.number,
        "outcome": trial.final.outcome.value,
        "samples_per_second": finite(speed),
        "samples_per_second_low": finite(speed and speed.low),
        "samples_per_second_high": finite(speed and speed.high),
        "peak_bytes": trial.peak_bytes,
        "data_wait_share": trial.final.data_wait_share,
        "input_bound": trial.final.input_bound,
        "joules_per_sample": trial.final.joules_per_sample,
        "confirmed": trial.confirmed,
        "warnings": list(trial.final.warnings),
    }


def speedup_fields(result: SearchResult) -> dict[str, Any]:
    """The speed-up with its interval, or why there is none."""
    speedup = result.measured_speedup
    return {
        "speedup": finite(speedup),
        "speedup_low": finite(speedup and speedup.low),
        "speedup_high": finite(speedup and speedup.high),
        "speedup_reason": result.speedup_reason,
    }


def launch_lines(result: SearchResult) -> list[str]:
    """The lines that start the training as it was measured, any of them; none where nothing was found."""
    if result.best_trial is None:
        return []
    lines = (
        launch_line(result.best_setup.processes, result.best_setup.variables),
        accelerate_line(result.best_setup.processes, result.best_setup.variables),
    )
    return [line for line in lines if line]
