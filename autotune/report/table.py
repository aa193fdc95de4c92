"""Trials -> a pandas DataFrame with stable columns and dtypes, one row a trial."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from autotune.levers import LEVERS
from autotune.trial import Trial

BEFORE = {
    "number": "int64",
    "outcome": "string",
    "reason": "string",
    "where": "string",
    "feasible": "bool",
    "micro_batch_size": "int64",
    "gradient_accumulation_steps": "int64",
    "data_parallel_size": "int64",
    "global_batch_size": "int64",
}
AFTER = {
    "samples_per_second": "float64",
    "samples_per_second_low": "float64",
    "samples_per_second_high": "float64",
    "tokens_per_second": "float64",
    "step_time_s": "float64",
    "micro_step_time_s": "float64",
    "optimizer_step_time_s": "float64",
    "data_wait_s": "float64",
    "peak_allocated_bytes": "Int64",
    "peak_reserved_bytes": "Int64",
    "peak_device_bytes": "Int64",
    "untimed_steps": "int64",
    "timed_steps": "int64",
    "ended_early": "bool",
    "probe_seconds": "float64",
    "doubts": "string",
    "confirmed": "bool",
    "non_padding_tokens_per_second": "float64",
    "forward_time_s": "float64",
    "backward_time_s": "float64",
    "overhead_time_s": "float64",
    "data_wait_share": "float64",
    "input_bound": "bool",
    "joules_per_sample": "float64",
    "allocator_retries": "int64",
    "skipped_steps": "int64",
    "rounds": "int64",
    "repeated_because": "string",
    "barred": "string",
    "compile_s": "float64",
    "peak_bytes": "Int64",
}


def frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row a trial, in the order of the numbers; the levers' columns stand between sizes and speeds.

    A confirmed trial's speeds are its confirmation's, its peaks the highest of all its probes. Unknown numbers are
    missing (NaN or <NA>), never 0. Bytes are bytes, times are seconds. `peak_bytes` is the peak that the limit speaks of.
    """
    levers = list(
        dict.fromkeys(name for trial in trials for name, _ in trial.configuration.levers if name not in BEFORE)
    )
    columns = [*BEFORE, *levers, *AFTER]
    table = pd.DataFrame([_row(trial) for trial in trials], columns=columns)
    dtypes = BEFORE | {name: _lever_dtype(name) for name in levers} | AFTER
    return table.astype(dtypes)


def _lever_dtype(name: str) -> str:
    kinds = {type(value) for value in LEVERS[name].values} if name in LEVERS else {str}
    return {frozenset({int}): "Int64", frozenset({bool}): "boolean"}.get(frozenset(kinds), "string")


def _row(trial: Trial) -> dict[str, Any]:
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
        **dict(configuration.levers),
        "samples_per_second": None if speed is None else speed.value,
        "samples_per_second_low": None if speed is None else speed.low,
        "samples_per_second_high": None if speed is None else speed.high,
        "tokens_per_second": None if tokens is None else tokens.value,
        "step_time_s": final.step_time_s,
        "micro_step_time_s": final.micro_step_time_s,
        "optimizer_step_time_s": final.optimizer_step_time_s,
        "data_wait_s": final.data_wait_s,
        **{name: _highest(trial, name) for name in AFTER if name.startswith("peak_")},
        "untimed_steps": final.untimed_steps,
        "timed_steps": len(final.steps),
        "ended_early": final.ended_early,
        "probe_seconds": trial.measurement.probe_seconds + sum(one.probe_seconds for one in trial.confirmations),
        "doubts": "; ".join(final.doubts),
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
        "barred": trial.barred,
        "compile_s": trial.measurement.compile_s,
        "peak_bytes": trial.peak_bytes,
    }


def _highest(trial: Trial, name: str) -> int | None:
    known = [getattr(one, name) for one in (trial.measurement, *trial.confirmations)]
    return max((one for one in known if one is not None), default=None)
