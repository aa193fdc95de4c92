"""Trials -> a pandas DataFrame with stable columns and dtypes, one row a trial."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from autotune.core.trial import Trial
from autotune.report.columns import BEFORE, dtypes, trial_columns
from autotune.space.utilization import Utilization


def frame(trials: Sequence[Trial], utilization: Mapping[int, Utilization] | None = None) -> pd.DataFrame:
    """One row a trial, in the order of the numbers; `autotune.report.columns` says what each column means.

    utilization: trial number -> how much of the device's arithmetic it uses, where that is known.

    A confirmed trial's speeds are its confirmation's, its peaks the highest of all its probes. Unknown numbers are
    missing (NaN or <NA>), never 0. Bytes are bytes, times are seconds. `peak_bytes` is the peak that the limit speaks of.
    """
    sizes = {column.name for column in BEFORE}
    settings = dict.fromkeys(name for trial in trials for name, _ in trial.configuration.settings if name not in sizes)
    columns = dtypes(trial_columns(settings))
    rows = [_row(trial, (utilization or {}).get(trial.number)) for trial in trials]
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _row(trial: Trial, use: Utilization | None) -> dict[str, Any]:
    configuration, final = trial.configuration, trial.final
    speed, tokens, real = final.samples_per_second, final.tokens_per_second, final.non_padding_tokens_per_second
    return {
        "number": trial.number,
        "outcome": final.outcome.value,
        "reason": final.reason,
        "where": final.where,
        "feasible": trial.feasible,
        "micro_batch_size": configuration.micro_batch_size,
        "gradient_accumulation_steps": configuration.gradient_accumulation_steps,
        "data_parallel_size": configuration.data_parallel_size,
        "global_batch_size": configuration.global_batch_size,
        **dict(configuration.settings),
        "samples_per_second": None if speed is None else speed.value,
        "samples_per_second_low": None if speed is None else speed.low,
        "samples_per_second_high": None if speed is None else speed.high,
        "tokens_per_second": None if tokens is None else tokens.value,
        "step_time_s": final.step_time_s,
        "micro_step_time_s": final.micro_step_time_s,
        "optimizer_step_time_s": final.optimizer_step_time_s,
        "data_wait_s": final.data_wait_s,
        **{f"peak_{kind}_bytes": _highest(trial, f"peak_{kind}_bytes") for kind in ("allocated", "reserved", "device")},
        "untimed_steps": final.untimed_steps,
        "timed_steps": len(final.steps),
        "ended_early": final.ended_early,
        "probe_seconds": trial.probe_seconds,
        "warnings": "; ".join(final.warnings),
        "confirmed": trial.confirmed,
        "non_padding_tokens_per_second": None if real is None else real.value,
        "forward_time_s": final.forward_time_s,
        "backward_time_s": final.backward_time_s,
        "overhead_time_s": final.overhead_time_s,
        "data_wait_share": final.data_wait_share,
        "input_bound": final.input_bound,
        "joules_per_sample": final.joules_per_sample,
        "allocator_retries": final.allocator_retries,
        "skipped_steps": final.skipped_steps,
        "rounds": len(trial.confirmations),
        "repeated_because": "; ".join(final.repeated_because),
        "barred": trial.disqualified_reason,
        "compile_s": trial.measurement.compile_s,
        "peak_bytes": trial.peak_bytes,
        "mfu": use and use.mfu,
        "measured_product_share": use and use.of_measured,
    }


def _highest(trial: Trial, name: str) -> int | None:
    known = [getattr(one, name) for one in (trial.measurement, *trial.confirmations)]
    return max((one for one in known if one is not None), default=None)
