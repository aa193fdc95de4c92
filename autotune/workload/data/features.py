"""Kinds of columns: texts, conversations, lists of numbers."""

from typing import Any

import datasets

from autotune.core.errors import InvalidRequest
from autotune.workload.data.chat import is_conversation

_LOOKED_AT_ROWS = 100


def first_objects(data: Any, column: str) -> Any:
    """The first value that is not empty, in the first rows of a column of lists of objects; None for any other column."""
    if not isinstance(element(data.features[column]), (dict, datasets.Json)):
        return None
    rows = data.select_columns([column])[:_LOOKED_AT_ROWS]
    return next((value for value in rows[column] if value), None)


def element(feature: Any) -> Any:
    """Type of the elements of a column's lists; of another column its type."""
    return getattr(feature, "feature", feature[0] if isinstance(feature, list) else feature)


def is_text(feature: Any, lists: bool = False) -> bool:
    """True for a column of texts; lists: or of lists of them."""
    if lists:
        feature = element(feature)
    return isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string")


def kind_of(data: Any, column: str) -> str:
    """Kind of a column, for people."""
    feature = data.features[column]
    if is_conversation(first_objects(data, column)):
        return "conversations"
    return "text" if is_text(feature) else str(getattr(feature, "dtype", None) or type(feature).__name__)


def unfit(data: Any, column: str, wanted: str, option: str) -> InvalidRequest:
    """The error of a column of another kind than is wanted; option: `text` or `label`, which names another one."""
    message = f"The column {column!r} holds {kind_of(data, column)}, not {wanted}."
    return InvalidRequest(message, f"Name another one with --{option}-column.")
