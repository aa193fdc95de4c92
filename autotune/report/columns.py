"""Columns of the tables that programs read: name, dtype, unit and meaning, in one place and in the order people read them.

The tables of docs/columns.md and the chooser of a report's page are made from this file.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.space.settings import SETTINGS


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    dtype: str  # as pandas names it
    meaning: str
    unit: str = ""  # empty for words and counts
    title: str = ""  # in the page's table; empty: its name without the unit

    @property
    def is_number(self) -> bool:
        return self.dtype in (WHOLE, WHOLE_OR_MISSING, NUMBER)

    @property
    def heading(self) -> str:
        """`samples/s`, `peak`, `step time`: the unit is in each cell."""
        return self.title or re.sub(*SHORTER.get(self.unit, ("_", " ")), self.name).replace("_", " ")


TEXT, WHOLE, WHOLE_OR_MISSING, NUMBER, TRUTH = "string", "int64", "Int64", "float64", "bool"
"""pandas' dtypes; that of a boolean setting is `boolean`. A missing value is <NA>, of a float64 NaN."""

FIRST = "it is the first"
"""Reason why the first of several studies is compared with no other."""

SPEED, SECONDS, BYTES, TOKENS = "samples / second", "seconds", "bytes", "tokens / second"
TIMES, SHARE = "times as fast", "share of 1"

SHORTER = {
    SECONDS: ("_s(econds)?$", ""),
    BYTES: ("_bytes", ""),
    **dict.fromkeys((SPEED, TOKENS), ("_per_second", "/s")),
}
"""Unit -> how it is spelled in names of columns, and in their headings."""

GROUPS = {
    "Result": (
        Column("number", WHOLE, "The trial's number; 0 is the baseline.", title="trial"),
        Column(
            "rank",
            WHOLE_OR_MISSING,
            "Place by the objective of what may win; 1 is the answer. Missing if it cannot win.",
        ),
        Column("outcome", TEXT, "How the trial ended: completed, out_of_memory, non_finite_loss, unsupported, ..."),
        Column("fits", TRUTH, "Whether it completed and fits with its headroom."),
        Column(
            "speedup",
            NUMBER,
            "Times as fast as the baseline: by pairs of measurements, else by single probes, which is not proven.",
            TIMES,
            title="speed-up",
        ),
        Column("speedup_low", NUMBER, "Lower end of the speed-up's 95% interval.", TIMES),
        Column("speedup_high", NUMBER, "Upper end of it.", TIMES),
        Column(
            "samples_per_second",
            NUMBER,
            "Speed over all timed steps; of what was measured again over its rounds.",
            SPEED,
        ),
        Column("samples_per_second_low", NUMBER, "Lower end of the speed's 95% interval.", SPEED),
        Column("samples_per_second_high", NUMBER, "Upper end of it; infinite if one step was timed.", SPEED),
        Column("peak_bytes", WHOLE_OR_MISSING, "Highest over all its probes of what the limit speaks of.", BYTES),
        Column(
            "confirmed",
            TRUTH,
            "Whether the speed-up is proven: by at least two pairs of measurements of it and the baseline.",
        ),
    ),
    "Settings": (
        Column(
            "micro_batch_size",
            WHOLE,
            "Samples in one forward and backward of one rank.",
            "samples",
            title="micro-batch",
        ),
        Column("gradient_accumulation_steps", WHOLE, "Micro-steps in one optimizer step.", title="accumulation"),
        Column("data_parallel_size", WHOLE, "Ranks that train together."),
        Column("global_batch_size", WHOLE, "Samples in one optimizer step over all ranks.", "samples"),
    ),
    "Speed and time": (
        Column("tokens_per_second", NUMBER, "Speed in tokens, padding included; missing without tokens.", TOKENS),
        Column("non_padding_tokens_per_second", NUMBER, "Tokens that are not padding; missing without tokens.", TOKENS),
        Column("step_time_s", NUMBER, "Mean of an optimizer step, end to end, waiting for data included.", SECONDS),
        Column("micro_step_time_s", NUMBER, "Mean of one forward and backward.", SECONDS),
        Column("forward_time_s", NUMBER, "Mean time of a step's forward passes.", SECONDS),
        Column("backward_time_s", NUMBER, "Mean time of a step's backward passes.", SECONDS),
        Column("optimizer_step_time_s", NUMBER, "Mean of clipping and the optimizer's step.", SECONDS),
        Column("overhead_time_s", NUMBER, "Mean time of a step outside its parts: the Trainer's own.", SECONDS),
        Column("data_wait_s", NUMBER, "Mean time a step waits for its micro-batches.", SECONDS),
        Column("data_wait_share", NUMBER, "data_wait_s as a share of step_time_s, 0 to 1.", SHARE),
        Column("input_bound", TRUTH, "Whether that share is a tenth or more."),
        Column(
            "mfu",
            NUMBER,
            "Model FLOPs / second as a share of the card's data-sheet peak, 0 to 1; missing if unknown.",
            SHARE,
            title="MFU",
        ),
        Column(
            "measured_product_share",
            NUMBER,
            "The same as a share of the fastest product measured on the device.",
            SHARE,
        ),
        Column(
            "joules_per_sample",
            NUMBER,
            "The device's energy; missing if it has no counter.",
            "joules / sample",
            title="J/sample",
        ),
    ),
    "Memory": (
        Column("peak_device_bytes", WHOLE_OR_MISSING, "Highest that the device saw of the training.", BYTES),
        Column("peak_allocated_bytes", WHOLE_OR_MISSING, "Highest that tensors held, over all its probes.", BYTES),
        Column("peak_reserved_bytes", WHOLE_OR_MISSING, "Highest that torch's allocator reserved.", BYTES),
        Column("allocator_retries", WHOLE, "Times the allocator emptied its cache and asked again; any: does not fit."),
    ),
    "Measuring": (
        Column("untimed_steps", WHOLE, "Optimizer steps before those that count."),
        Column("timed_steps", WHOLE, "Optimizer steps that count."),
        Column("skipped_steps", WHOLE, "Steps that fp16's loss scaling left out."),
        Column("rounds", WHOLE, "How often it was measured again."),
        Column("ended_early", TRUTH, "Whether the probe stopped because it could not win any more."),
        Column("compile_s", NUMBER, "Time spent compiling before the timed steps; 0 if nothing was compiled.", SECONDS),
        Column("probe_seconds", NUMBER, "What the trial took, all its probes together.", SECONDS),
        Column("device", TEXT, "The device of its probe, if the search used several; else empty."),
    ),
    "Why": (
        Column("warnings", TEXT, "What speaks against its numbers, separated by semicolons; else empty."),
        Column("failure_reason", TEXT, "Why it did not complete, in the library's own words; else empty."),
        Column(
            "out_of_memory_stage", TEXT, "Where memory ran out (build, data, forward, backward, optimizer); else empty."
        ),
        Column("remeasured_reason", TEXT, "Warnings for which it was measured again, separated by semicolons."),
        Column("disqualified_reason", TEXT, "Why it cannot win although it fits; else empty."),
    ),
}
"""Group -> its columns, in the order of every table; the settings of a study follow those of their group."""

BEFORE = (*GROUPS["Result"], *GROUPS["Settings"])
AFTER = tuple(column for group in [*GROUPS][2:] for column in GROUPS[group])


def trial_columns(settings: Iterable[str] = ()) -> list[Column]:
    """Every column of the trials' table in its order, those of these settings between sizes and speeds."""
    return [*BEFORE, *(setting_column(name) for name in settings), *AFTER]


def setting_column(name: str) -> Column:
    """The column of one setting; its value is missing in trials of a space without it."""
    if name not in SETTINGS:
        return Column(name, TEXT, "A setting that this version does not know.")
    kinds = {type(value) for value in SETTINGS[name].values}
    dtype = {frozenset({int}): WHOLE_OR_MISSING, frozenset({bool}): "boolean"}.get(frozenset(kinds), TEXT)
    return Column(name, dtype, SETTINGS[name].summary)


def dtypes(columns: Iterable[Column]) -> dict[str, str]:
    """Name -> dtype, as `DataFrame.astype` takes it."""
    return {column.name: column.dtype for column in columns}
