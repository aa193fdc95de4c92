"""Trials as a pandas DataFrame with stable columns and dtypes, one row a trial."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from autotune.core import Interval, Outcome, Trial
from autotune.judge.objective import speed
from autotune.judge.standing import Standing
from autotune.report.columns import GROUPS, dtypes, trial_columns
from autotune.report.trial_text import interval_columns, is_same
from autotune.space.utilization import Utilization

SIZES = tuple(column.name for column in GROUPS["Settings"])

OF_RESULT = (
    *("step_time_s", "micro_step_time_s", "optimizer_step_time_s", "data_wait_s", "untimed_steps", "ended_early"),
    *("forward_time_s", "backward_time_s", "overhead_time_s", "data_wait_share", "input_bound"),
    *("joules_per_sample", "allocator_retries", "skipped_steps"),
)
"""Columns that are the values of these names of `Trial.final`."""


def frame(
    trials: Sequence[Trial],
    utilization: Mapping[int, Utilization] | None = None,
    objective: str = "samples_per_second",
    refuted: Trial | None = None,
) -> pd.DataFrame:
    """One row a trial, in the order of the numbers; `autotune.report.columns` says what each column means.

    utilization: trial number -> how much of the device's arithmetic it uses, if that is known. refuted: as of the result.

    The speeds of a trial that was measured again are those of its rounds, its peaks the highest of all its probes. Unknown
    numbers are missing (NaN or <NA>), never 0. Bytes are bytes, times are seconds. `peak_bytes` is the peak that the limit is
    about.
    """
    settings = dict.fromkeys(name for trial in trials for name, _ in trial.configuration.settings if name not in SIZES)
    columns = dtypes(trial_columns(settings))
    standing = Standing(tuple(trials), objective)
    ranks = {number: rank for rank, number in enumerate(_ranked(standing, refuted), start=1)}
    rows = [
        _row(trial, (utilization or {}).get(trial.number))
        | {"confirmed": standing.is_shown(trial)}
        | {"rank": ranks.get(trial.number)}
        | interval_columns("speedup", standing.gain(trial) if trial.feasible else None)
        for trial in trials
    ]
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _ranked(standing: Standing, refuted: Trial | None) -> list[int]:
    """Numbers of the trials that may win: the answer, then the others by speed."""
    best = standing.compared if refuted else standing.answer
    able = [trial for trial in standing.able if not is_same(trial, refuted)]

    def rank(trial: Trial) -> tuple[bool, float]:
        return not is_same(trial, best), -float(speed(trial.final, standing.objective) or 0.0)

    return [trial.number for trial in sorted(able, key=rank)]


def _row(trial: Trial, use: Utilization | None) -> dict[str, Any]:
    configuration, final = trial.configuration, trial.final
    return {
        "number": trial.number,
        "outcome": final.outcome.value,
        "fits": trial.feasible,
        **{name: getattr(configuration, name) for name in SIZES},
        **dict(configuration.settings),
        **{name: getattr(final, name) for name in OF_RESULT},
        **interval_columns("samples_per_second", final.samples_per_second),
        "tokens_per_second": _value(final.tokens_per_second),
        "non_padding_tokens_per_second": _value(final.non_padding_tokens_per_second),
        **{f"peak_{kind}_bytes": _highest(trial, f"peak_{kind}_bytes") for kind in ("allocated", "reserved", "device")},
        "timed_steps": len(final.steps),
        "probe_seconds": trial.probe_seconds,
        "rounds": len(trial.confirmations),
        "compile_s": trial.final.compile_s,
        "peak_bytes": trial.peak_bytes,
        "device": trial.measurement.device,
        "mfu": use and use.mfu,
        "measured_product_share": use and use.of_measured,
        "warnings": "; ".join(map(str, final.warnings)),
        "failure_reason": final.reason,
        "out_of_memory_stage": final.where if final.outcome is Outcome.OUT_OF_MEMORY else "",
        "remeasured_reason": "; ".join(map(str, final.repeated_because)),
        "disqualified_reason": trial.disqualified_reason,
    }


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


def _highest(trial: Trial, name: str) -> int | None:
    values = [getattr(measurement, name) for measurement in (trial.measurement, *trial.confirmations)]
    return max((value for value in values if value is not None), default=None)
