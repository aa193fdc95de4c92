"""What `--json` prints of trials and speed-up, as plain data."""

import math
from typing import Any

from autotune.launch import accelerate_line, launch_line
from autotune.report.summary import Facts
from autotune.trial import Trial


def plain_trial(trial: Trial | None) -> dict[str, Any] | None:
    """A trial's configuration, outcome, speed (samples / second) and peak (bytes)."""
    if trial is None:
        return None
    speed = trial.samples_per_second
    return trial.configuration.to_dict() | {
        "number": trial.number,
        "outcome": trial.final.outcome.value,
        "samples_per_second": _finite(speed),
        "samples_per_second_low": _finite(speed and speed.low),
        "samples_per_second_high": _finite(speed and speed.high),
        "peak_bytes": trial.peak_bytes,
        "data_wait_share": trial.final.data_wait_share,
        "input_bound": trial.final.input_bound,
        "joules_per_sample": trial.final.joules_per_sample,
        "confirmed": trial.confirmed,
        "doubts": list(trial.final.doubts),
    }


def speedup_fields(facts: Facts) -> dict[str, Any]:
    """The speed-up with its interval, or why there is none."""
    speedup = facts.speedup
    return {
        "speedup": _finite(speedup),
        "speedup_low": _finite(speedup and speedup.low),
        "speedup_high": _finite(speedup and speedup.high),
        "speedup_reason": facts.speedup_reason,
    }


def launch_lines(facts: Facts) -> list[str]:
    """The lines that start the training as it was measured, any of them; none where nothing was found."""
    if facts.best is None:
        return []
    lines = (launch_line(facts.processes, facts.variables), accelerate_line(facts.processes, facts.variables))
    return [line for line in lines if line]


def _finite(number: float | None) -> float | None:
    """JSON has no infinity: one step alone has no upper bound."""
    return float(number) if number is not None and math.isfinite(number) else None
