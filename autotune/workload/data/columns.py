"""Columns of the data that a task reads, and the numbers of their labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import datasets

from autotune.core.errors import InvalidRequest, did_you_mean

_SOURCES = ("text",)
_TARGETS = ("target", "summary", "labels", "label")
_LABELS = ("label", "labels")
_TAGS = ("ner_tags", "tags", "labels", "label")


@dataclass(frozen=True)
class Columns:
    """The columns of the data that a task reads; label is empty where the task has none or makes its own."""

    text: str
    label: str = ""
    question: str = ""


@dataclass(frozen=True)
class Labels:
    """How a column's values become what the model learns: a class id each, or a number as it is."""

    count: int  #: classes; 1 for numbers
    ids: Mapping[Any, int] | None = None  #: value -> class id; None where the values are class ids already
    is_number: bool = False

    def of(self, value: Any) -> int | float | None:
        """The label of a value; None where the row has none."""
        if value is None or value != value:  # NaN
            return None
        if self.is_number:
            return float(value)
        label = int(value) if self.ids is None else self.ids[value]
        return label if label >= 0 else None


def choose_columns(data: Any, task: str, text: str | None, label: str | None) -> Columns:
    """The requested columns, else the usual ones. Raises InvalidRequest where one is missing or unfit for the task."""
    if task == "image-classification":
        return Columns(_image_column(data, text), _column(data, label, _LABELS, "label"))
    if task == "token-classification":
        words = _column(data, text, ("tokens",), "text")
        if _is_text(data.features[words]) or not _is_text(data.features[words], lists=True):
            raise _unfit(data, words, "lists of words", "text")
        return Columns(words, _column(data, label, _TAGS, "label"))
    if task == "question-answering":
        question = _column(data, None, ("question",), "question")
        context, answers = _column(data, text, ("context",), "text"), _column(data, label, ("answers",), "label")
        feature = getattr(data.features[answers], "feature", data.features[answers])
        if not isinstance(feature, Mapping) or not {"text", "answer_start"} <= feature.keys():
            raise _unfit(data, answers, "answers with text and answer_start", "label")
        return Columns(context, answers, question)
    if task == "sequence-classification":
        return Columns(_text_column(data, text, _LABELS), _column(data, label, _LABELS, "label"))
    if task == "seq2seq-lm":
        source = _text_column(data, text, _TARGETS)
        if label is None and not any(name in _text_columns(data) for name in _TARGETS):
            return Columns(source, source)
        return Columns(source, _text_column(data, label, (), _TARGETS, option="label"))
    return Columns(_text_column(data, text, ()))


def read_labels(data: Any, column: str, classes: int) -> Labels:
    """The classes of a column of labels (or of lists of labels); classes: as many as the model's config has."""
    feature = data.features[column]
    feature = getattr(feature, "feature", feature[0] if isinstance(feature, list) else feature)
    if isinstance(feature, datasets.ClassLabel):
        return Labels(feature.num_classes)
    values: set[Any] = set()
    for value in data[column]:
        several = value if isinstance(value, list) else (value,)
        if any(isinstance(label, (list, dict)) for label in several):
            raise _unfit(data, column, "labels", "label")
        values.update(several)
    # -100 is what the loss ignores, not a class.
    values -= {None, -100}
    if not values:
        raise InvalidRequest(f"The column {column!r} holds no labels.", "Name another one with --label-column.")
    if any(isinstance(value, float) for value in values):
        return Labels(1, is_number=True)
    if not all(isinstance(value, (str, int)) for value in values):
        raise _unfit(data, column, "labels", "label")
    numbers = not any(isinstance(value, (str, bool)) for value in values)
    if numbers and min(values) >= 0 and max(values) < max(len(values), classes):
        return Labels(max(values) + 1)
    # A mix of numbers and words can only be sorted as words.
    ordered = sorted(values, key=str if any(isinstance(value, str) for value in values) else None)
    return Labels(len(ordered), {value: number for number, value in enumerate(ordered)} | {-100: -100})


def _unfit(data: Any, column: str, wanted: str, option: str) -> InvalidRequest:
    message = f"The column {column!r} holds {_kind(data, column)}, not {wanted}."
    return InvalidRequest(message, f"Name another one with --{option}-column.")


def texts_of(data: Any, columns: Columns) -> Iterator[str]:
    """Every text of the columns read, for training a tokenizer; lists of words come as their words."""
    for column in dict.fromkeys((columns.text, columns.question, columns.label)):
        if not column or not _is_text(data.features[column], lists=True):
            continue
        for value in data[column]:
            if isinstance(value, list):
                yield " ".join(str(word) for word in value)
            elif value:
                yield value


def _column(data: Any, requested: str | None, usual: tuple[str, ...], what: str) -> str:
    names = list(data.column_names)
    if requested is not None:
        if requested not in names:
            raise InvalidRequest(f"The data has no column {requested!r}.", did_you_mean(requested, names))
        return requested
    if there := [name for name in usual if name in names]:
        return there[0]
    option = f"--{what}-column" if what in ("text", "label") else f"a column named {usual[0]}"
    raise InvalidRequest(
        f"The data has no column named {' or '.join(usual)}; its columns are {', '.join(names)}.", f"Use {option}."
    )


def _text_column(
    data: Any, requested: str | None, others: tuple[str, ...], usual: tuple[str, ...] = _SOURCES, option: str = "text"
) -> str:
    """The requested column of text, the usual one, or the only one that is not among the others."""
    texts = _text_columns(data)
    if requested is None:
        candidates = [name for name in texts if name not in others]
        if chosen := [name for name in usual if name in texts] or (candidates if len(candidates) == 1 else []):
            return chosen[0]
        raise InvalidRequest(
            f"Which column holds the text? The data's columns are {_listed(data)}.", f"Name it with --{option}-column."
        )
    column: str = _column(data, requested, (), option)
    if column not in texts:
        raise _unfit(data, column, "text", option)
    return column


def _text_columns(data: Any) -> list[str]:
    return [name for name, feature in data.features.items() if _is_text(feature)]


def _image_column(data: Any, requested: str | None) -> str:
    images = [name for name, feature in data.features.items() if isinstance(feature, datasets.Image)]
    column = _column(data, requested, (), "text") if requested else (images[0] if len(images) == 1 else "")
    if column not in images:
        raise InvalidRequest(
            f"Which column holds the images? The data's columns are {_listed(data)}.",
            "Use an image folder, or name the column with --text-column.",
        )
    return column


def _is_text(feature: Any, lists: bool = False) -> bool:
    if lists:
        feature = getattr(feature, "feature", feature[0] if isinstance(feature, list) else feature)
    return isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string")


def _listed(data: Any) -> str:
    return ", ".join(f"{name} ({_kind(data, name)})" for name in data.column_names)


def _kind(data: Any, column: str) -> str:
    feature = data.features[column]
    return "text" if _is_text(feature) else str(getattr(feature, "dtype", None) or type(feature).__name__)
