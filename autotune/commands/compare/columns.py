"""Table of a comparison: a row a study, with stable columns and dtypes."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from autotune.report.columns import (
    BYTES,
    NUMBER,
    SECONDS,
    SHARE,
    SPEED,
    TEXT,
    TIMES,
    WHOLE,
    WHOLE_OR_MISSING,
    Column,
    dtypes,
)

COST = "currency / 1,000,000 samples"

COMPARED = (
    Column("study", TEXT, "The study's name; of two with one name, with the folder above it."),
    Column("model", TEXT, "The model."),
    Column("task", TEXT, "The task."),
    Column("sequence_length", WHOLE_OR_MISSING, "Longest sample; missing for images.", "tokens"),
    Column("global_batch_size", WHOLE, "Samples in one optimizer step over all ranks.", "samples"),
    Column("objective", TEXT, "Objective of its search."),
    Column("device", TEXT, "cpu, or the GPU as torch names it."),
    Column("device_name", TEXT, "The processor or GPU."),
    Column("data_parallel_size", WHOLE_OR_MISSING, "Ranks of the best configuration."),
    Column("versions", TEXT, "Versions that decide speed: torch, transformers, accelerate, the driver."),
    Column("trials", WHOLE, "Configurations that were probed."),
    Column("probes", WHOLE, "Measurements in all, those made again among them."),
    Column("probe_seconds", NUMBER, "Their total time.", SECONDS),
    Column("allowed_bytes", WHOLE, "Memory that a configuration had to fit in.", BYTES),
    Column("baseline_configuration", TEXT, "The user's own settings, made exact; empty if never measured."),
    Column("baseline_samples_per_second", NUMBER, "Its speed; missing if it does not run.", SPEED),
    Column("baseline_samples_per_second_low", NUMBER, "Lower end of that speed's 95% interval.", SPEED),
    Column("baseline_samples_per_second_high", NUMBER, "Upper end of it.", SPEED),
    Column("baseline_peak_bytes", WHOLE_OR_MISSING, "Highest memory use of the baseline.", BYTES),
    Column("best_trial", WHOLE_OR_MISSING, "Number of the best trial; missing without an answer."),
    Column("best_configuration", TEXT, "The best configuration; empty without an answer."),
    Column("best_unlike_baseline", TEXT, "Its batch sizes and its differences from the baseline."),
    Column("best_samples_per_second", NUMBER, "Its speed.", SPEED),
    Column("best_samples_per_second_low", NUMBER, "Lower end of that speed's 95% interval.", SPEED),
    Column("best_samples_per_second_high", NUMBER, "Upper end of it.", SPEED),
    Column("best_peak_bytes", WHOLE_OR_MISSING, "Highest memory use of the best configuration.", BYTES),
    Column("confirmed", "bool", "Whether its speed-up is proven by pairs of measurements."),
    Column("state", TEXT, "What the search found, as in its JSON: improved, kept, too_noisy, ..."),
    Column("verdict", TEXT, "How sure that is: solid, rough, not_proven, too_noisy; else empty."),
    Column("speedup", NUMBER, "How many times as fast as its own baseline; 1 if its settings are kept.", TIMES),
    Column("speedup_low", NUMBER, "Lower end of the speed-up's 95% interval; missing if its settings are kept.", TIMES),
    Column("speedup_high", NUMBER, "Upper end of it.", TIMES),
    Column("why_no_speedup", TEXT, "Why there is no speed-up, or why it is open and what would tell; else empty."),
    Column("compared_with", TEXT, "The first study that did the same work, if this is another one; else empty."),
    Column("times_as_fast", NUMBER, "This study's best speed over that one's; missing if the work differs.", TIMES),
    Column("times_as_fast_low", NUMBER, "Lower end of its 95% interval.", TIMES),
    Column("times_as_fast_high", NUMBER, "Upper end of it.", TIMES),
    Column("why_not_compared", TEXT, "Why it is compared with no other study; else empty."),
    Column("price_per_hour", NUMBER, "Price of all that it trained on; missing if none was given.", "currency / hour"),
    Column("currency", TEXT, "The price's currency as it was given; else empty."),
    Column(
        "baseline_cost_per_million_samples",
        NUMBER,
        "What the baseline costs at that price; missing if its speed is hardly known.",
        COST,
    ),
    Column(
        "best_cost_per_million_samples",
        NUMBER,
        "What the best configuration costs at that price; missing likewise.",
        COST,
    ),
    Column("warnings", TEXT, "Warnings about the numbers, separated by semicolons; else empty."),
    Column(
        "baseline_mfu",
        NUMBER,
        "Model FLOPs / second of the baseline as a share of the card's data-sheet peak, 0 to 1.",
        SHARE,
    ),
    Column("best_mfu", NUMBER, "The same of the best configuration; missing if the card's peak is not known.", SHARE),
    Column(
        "why_no_best", TEXT, "Why there is no best trial: not measured, nothing fits, none completed ...; else empty."
    ),
)
"""Later work adds columns and renames none. What is missing is NaN or <NA>; an upper end without bound is infinite."""


def compared_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a study, in the order given."""
    columns = dtypes(COMPARED)
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)
