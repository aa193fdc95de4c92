"""Trials as a pandas DataFrame with stable columns and dtypes, one row a trial."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from autotune.core import Interval, Trial
from autotune.report.columns import BEFORE, dtypes, trial_columns
from autotune.space.utilization import Utilization

SIZES = ("micro_batch_size", "gradient_accumulation_steps", "data_parallel_size", "global_batch_size")

OF_RESULT = (
    *("reason", "where", "step_time_s", "micro_step_time_s", "optimizer_step_time_s", "data_wait_s", "untimed_steps"),
    *("ended_early", "forward_time_s", "backward_time_s", "overhead_time_s", "data_wait_share", "input_bound"),
    *("joules_per_sample", "allocator_retries", "skipped_steps"),
)
"""Columns that are the values of these names of `Trial.final`."""


def frame(trials: Sequence[Trial], utilization: Mapping[int, Utilization] | None = None) -> pd.DataFrame:
    """One row a trial, in the order of the numbers; `autotune.report.columns` says what each column means.

    utilization: trial number -> how much of the device's arithmetic it uses, where that is known.

    A confirmed trial's speeds are its confirmation's, its peaks the highest of all its probes. Unknown numbers are
    missing (NaN or <NA>), never 0. Bytes are bytes, times are seconds. `peak_bytes` is the peak that the limit is about.
    """
    sizes = {column.name for column in BEFORE}
    settings = dict.fromkeys(name for trial in trials for name, _ in trial.configuration.settings if name not in sizes)
    columns = dtypes(trial_columns(settings))
    rows = [_row(trial, (utilization or {}).get(trial.number)) for trial in trials]
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _row(trial: Trial, use: Utilization | None) -> dict[str, Any]:
    configuration, final = trial.configuration, trial.final
    speed = final.samples_per_second
    return {
        "number": trial.number,
        "outcome": final.outcome.value,
        "feasible": trial.feasible,
        **{name: getattr(configuration, name) for name in SIZES},
        **dict(configuration.settings),
        **{name: getattr(final, name) for name in OF_RESULT},
        "samples_per_second": _value(speed),
        "samples_per_second_low": None if speed is None else speed.low,
        "samples_per_second_high": None if speed is None else speed.high,
        "tokens_per_second": _value(final.tokens_per_second),
        "non_padding_tokens_per_second": _value(final.non_padding_tokens_per_second),
        **{f"peak_{kind}_bytes": _highest(trial, f"peak_{kind}_bytes") for kind in ("allocated", "reserved", "device")},
        "timed_steps": len(final.steps),
        "probe_seconds": trial.probe_seconds,
        "warnings": "; ".join(final.warnings),
        "confirmed": trial.confirmed,
        "rounds": len(trial.confirmations),
        "remeasured_reason": "; ".join(final.repeated_because),
        "disqualified_reason": trial.disqualified_reason,
        "compile_s": trial.measurement.compile_s,
        "peak_bytes": trial.peak_bytes,
        "device": trial.measurement.device,
        "mfu": use and use.mfu,
        "measured_product_share": use and use.of_measured,
    }


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


def _highest(trial: Trial, name: str) -> int | None:
    values = [getattr(measurement, name) for measurement in (trial.measurement, *trial.confirmations)]
    return max((value for value in values if value is not None), default=None)
