"""Words and JSON fields of a trial: its speed, outcome, warnings, and what differs from the baseline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.core import Configuration, Interval, Outcome, Trial, Value
from autotune.core.configuration import RANKS
from autotune.core.units import counted, finite, format_bytes, format_interval
from autotune.judge.certainty import speedup_gap
from autotune.judge.standing import Standing
from autotune.study.result import SearchResult

NOT_PROVEN = ", not proven"
"""Words after a speed-up that is not proven (`Standing.is_shown`)."""


def range_text(interval: Interval) -> str:
    """`1.50x to 1.66x`; `at least 1.50x` without an upper end."""
    if math.isfinite(interval.high):
        return f"{interval.low:.2f}x to {interval.high:.2f}x"
    return f"at least {interval.low:.2f}x"


def interval_text(interval: Interval) -> str:
    """`1.23x, 95% interval 0.44x to 3.41x`."""
    return f"{interval:.2f}x, 95% interval {range_text(interval)}"


def speed_text(trial: Trial) -> str:
    """`41.2 ± 0.3`, or a dash."""
    speed = trial.samples_per_second
    return format_interval(speed, speed.low, speed.high) if speed is not None else "-"


def speed_line(best: Trial, standing: Standing) -> str:
    """`41.2 ± 0.3 samples/s, 2.41x the baseline (95% interval 2.30x to 2.52x)`."""
    text, compared = f"{speed_text(best)} samples/s", standing.compared
    if is_same(best, standing.baseline):
        return f"{text}, the baseline itself"
    if standing.baseline is None:
        return text
    speedup = None if is_same(best, compared) else standing.gain(best)
    if speedup is None or compared is None:
        return f"{text}, no speed-up: {speedup_gap(standing)}"
    proven = "" if standing.is_shown(best) else NOT_PROVEN
    rival = f"trial {compared.number}" if compared.number else "the baseline"
    return f"{text}, {speedup:.2f}x {rival} (95% interval {range_text(speedup)}){proven}"


def is_same(trial: Trial, other: Trial | None) -> bool:
    """True if both are the same trial of a study."""
    return other is not None and trial.number == other.number


def short_words(configuration: Configuration, baseline: Configuration | None) -> list[str]:
    """`["4x8", "bf16", "2 workers"]`: sizes, precision, and what else differs from the baseline."""
    sizes = [configuration.micro_batch_size, configuration.gradient_accumulation_steps]
    if configuration.data_parallel_size > 1:
        sizes.append(configuration.data_parallel_size)
    before = {} if baseline is None else baseline.values
    differing = [
        setting_words(name, value)
        for name, value in configuration.settings
        if name == "precision" or (name != RANKS and baseline is not None and before.get(name) != value)
    ]
    return ["x".join(map(str, sizes)), *differing]


def setting_words(name: str, value: Value) -> str:
    """A setting's value by itself: `bf16`, `2 workers`, `no pin memory`, `checkpointing full`."""
    label = name.replace("_", " ")
    if isinstance(value, bool):
        return label if value else f"no {label}"
    if name == "workers":
        return f"{value} worker{'' if value == 1 else 's'}"
    return str(value) if name in ("precision", "optimizer") else f"{label} {value}"


def role_text(trial: Trial, result: SearchResult) -> str:
    """` (baseline)`, ` (best)`, both, or nothing."""
    trials = {"baseline": result.baseline_trial, "best": result.best_trial}
    roles = ", ".join(name for name, other in trials.items() if is_same(trial, other))
    return f" ({roles})" if roles else ""


def plain_trial(trial: Trial | None, standing: Standing) -> dict[str, Any] | None:
    """A trial for JSON: configuration, outcome, speed (samples / second), peak (bytes), whether its speed-up is proven."""
    if trial is None:
        return None
    speed, final = trial.samples_per_second, trial.final
    return trial.configuration.to_dict() | {
        "number": trial.number,
        "outcome": final.outcome.value,
        **interval_fields("samples_per_second", speed),
        "peak_bytes": trial.peak_bytes,
        "data_wait_share": final.data_wait_share,
        "input_bound": final.input_bound,
        "joules_per_sample": final.joules_per_sample,
        "confirmed": standing.is_shown(trial),
        "warnings": [warning.to_dict() for warning in final.warnings],
    }


def speedup_fields(result: SearchResult) -> dict[str, Any]:
    """The speed-up with its interval for JSON, and why there is none or it is open; the baseline's own is not measured."""
    fields = interval_fields("speedup", result.measured_speedup)
    if fields["speedup"] is not None and not result.changes_settings:
        fields |= {"speedup_low": None, "speedup_high": None}
    return fields | {"speedup_gap": result.speedup_gap and result.speedup_gap.to_dict()}


def interval_columns(name: str, interval: Interval | None) -> dict[str, float]:
    """`name`, `name_low` and `name_high` for a row of a table, infinite ends too; empty if unknown."""
    if interval is None:
        return {}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def interval_fields(name: str, interval: Interval | None) -> dict[str, float | None]:
    """The same for JSON: None if unknown, or for an upper end without bound."""
    columns = interval_columns(name, interval)
    return {field: finite(columns.get(field)) for field in (name, f"{name}_low", f"{name}_high")}


def interval_of(fields: Mapping[str, Any], name: str) -> Interval | None:
    """The interval of these fields or columns; None if a part of it is unknown."""
    values: list[Any] = [fields.get(field) for field in (name, f"{name}_low", f"{name}_high")]
    return None if None in values else Interval(*values)


def difference(trial: Trial, result: SearchResult) -> str:
    """The configuration: the baseline's in full, of the others what differs from it."""
    baseline = result.baseline_trial
    is_whole = baseline is None or is_same(trial, baseline)
    return trial.configuration.unlike(None if is_whole or baseline is None else baseline.configuration)


def warnings_text(trial: Trial) -> str:
    """The warnings about a trial's numbers, and those for which it was measured again."""
    remeasured = [f"measured again because {warning}" for warning in trial.final.repeated_because]
    return "; ".join([*map(str, trial.final.warnings), *remeasured])


def failures_text(trials: Sequence[Trial]) -> str:
    """`3 out of memory, 1 crashed`; empty if every trial fits."""
    kinds = [
        "over the limit" if trial.final.outcome is Outcome.COMPLETED else trial.final.outcome.value.replace("_", " ")
        for trial in trials
        if not trial.feasible
    ]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def outcome_text(trial: Trial) -> str:
    """`completed`, `completed (measured 3 times)`, `out of memory in forward: 16 MiB more were refused`."""
    final = trial.final
    if final.outcome is Outcome.COMPLETED:
        if final.allocator_retries and not final.feasible:
            return f"completed, but the CUDA allocator had to retry {counted(final.allocator_retries, 'time')}"
        if not final.feasible:
            return f"completed, but {final.fits:.0%} above what is allowed"
        if trial.disqualified_reason:
            return f"completed (cannot win: {trial.disqualified_reason})"
        if trial.confirmed:
            return f"completed (measured {counted(len(trial.measurements), 'time')})"
        return "completed (ended early: cannot win)" if final.ended_early else "completed"
    where = f" in {final.where}" if final.where else ""
    if final.outcome is Outcome.OUT_OF_MEMORY and final.refused_bytes is not None:
        return f"out of memory{where}: {format_bytes(final.refused_bytes)} more were refused"
    return f"{final.outcome.replace('_', ' ')}{where}: {final.reason}"
