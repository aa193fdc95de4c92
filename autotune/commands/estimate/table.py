"""Table of a memory forecast: a row a peak, with stable columns and dtypes."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from autotune.report.columns import BYTES, GROUPS, TEXT, WHOLE_OR_MISSING, Column, dtypes
from autotune.space.settings import MICRO

SIZES = tuple(column for column in GROUPS["Settings"] if column.name in (MICRO, "gradient_accumulation_steps"))
PEAKS = (
    Column("fits", "boolean", "Whether it is within the memory limit less headroom; missing without a limit."),
    Column("peak_bytes", WHOLE_OR_MISSING, "Highest memory use of the device, including its context.", BYTES),
    Column("peak_allocated_bytes", WHOLE_OR_MISSING, "Bytes of it that torch allocates.", BYTES),
    Column("peak_reserved_bytes", WHOLE_OR_MISSING, "Bytes that torch's allocator holds for that.", BYTES),
    Column("weights_bytes", WHOLE_OR_MISSING, "Weights, at the peak, as all columns that follow.", BYTES),
    Column("gradients_bytes", WHOLE_OR_MISSING, "Gradients.", BYTES),
    Column("optimizer_states_bytes", WHOLE_OR_MISSING, "States of the optimizer.", BYTES),
    Column("activations_bytes", WHOLE_OR_MISSING, "Tensors that the forward keeps for the backward.", BYTES),
    Column("temporary_bytes", WHOLE_OR_MISSING, "Tensors that are needed briefly.", BYTES),
    Column(
        "communication_bytes", WHOLE_OR_MISSING, "Gathered weights and copies of gradients, of several ranks.", BYTES
    ),
    Column("context_bytes", WHOLE_OR_MISSING, "The device's context, and NCCL's buffers of several ranks.", BYTES),
    Column("where", TEXT, "When the peak comes: forward and backward, or optimizer step; empty if not traced."),
    Column("cards", TEXT, "Shipped GPUs that it fits, separated by commas; else empty."),
    Column("reason", TEXT, "Why there is no peak; else empty."),
)
FORECAST = (*SIZES, *PEAKS)
"""Between the two are the settings that change memory, as text: all values that need the same, separated by `/`.

Later work adds columns and renames none. What is missing is <NA>."""


def forecast_frame(forecast: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each of `Forecast.to_dict()`, in its order."""
    rows = []
    for row in forecast["rows"]:
        settings = {name: "/".join(map(str, values)) for name, values in row["settings"].items()}
        split = {f"{part}_bytes": size for part, size in row.get("split", {}).items()}
        rows.append({"where": "", **row, **settings, **split, "cards": ", ".join(row["cards"])})
    names = dict.fromkeys(name for row in forecast["rows"] for name in row["settings"])
    columns = dtypes(SIZES) | dict.fromkeys(names, TEXT) | dtypes(PEAKS)
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)
