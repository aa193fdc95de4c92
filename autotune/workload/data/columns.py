"""Columns of the data that a task reads, and the numbers of their labels."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import datasets

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.workload.data.chat import chat_text, has_template, is_conversation, messages_of

_SOURCES = ("messages", "conversations", "text")
_TARGETS = ("target", "summary", "completion", "labels", "label")
_LABELS = ("label", "labels")
_TAGS = ("ner_tags", "tags", "labels", "label")
_ALPACA = (("instruction", "input", "output"), ("instruction", "context", "response"))
"""Columns of an instruction, of what it is about, which may be missing or empty, and of the answer."""
TOKENS = "input_ids"
"""Column of data that is tokenised already."""
SINGLE, SEVERAL, NUMBERS = "single_label_classification", "multi_label_classification", "regression"
"""Values of `problem_type` in a model's config."""
_LOOKED_AT_ROWS = 100
_OBJECTS = (dict, getattr(datasets, "Json", dict))  # Json is newer than datasets 4.0


@dataclass(frozen=True)
class Columns:
    """The columns of the data that a task reads; label is empty if the task has none or makes its own."""

    text: str  #: of texts, conversations, lists of words, token ids or images
    label: str = ""  #: of labels, tags, answers, or of the text that is to be learnt
    question: str = ""
    tools: str = ""  #: of functions that a conversation may call


@dataclass(frozen=True)
class Labels:
    """How a column's values become what the model learns."""

    count: int  #: outputs of the model: classes, or numbers of a sample
    ids: Mapping[Any, int] | None = None  #: value -> class id; None if the values are class ids or numbers already
    problem: str = SINGLE  #: `problem_type` of the config
    is_vector: bool = False  #: a value is a list of `count` numbers: of 0 and 1 for classes

    def of(self, value: Any) -> int | float | list[float] | None:
        """The label of a value; None if the row has none."""
        if value is None or value != value:  # NaN
            return None
        if self.is_vector:
            return [float(number) for number in value]
        if self.problem == SEVERAL:
            classes = {self._class(name) for name in value}
            return [float(number in classes) for number in range(self.count)]
        if self.problem == NUMBERS:
            return float(value)
        label = self._class(value)
        return label if label >= 0 else None

    def _class(self, value: Any) -> int:
        return int(value) if self.ids is None else self.ids[value]


def choose_columns(data: Any, task: str, text: str | None, label: str | None) -> tuple[Any, Columns]:
    """The requested columns, else the usual ones, and the data with them: fields of nested rows are columns of their own.

    Raises InvalidRequest if one is missing or unfit for the task.
    """
    structs = {
        name: feature for name, feature in data.features.items() if isinstance(feature, (dict, datasets.Translation))
    }
    if structs and task != "question-answering":
        data = data.flatten().with_format(None)  # which would show the columns that there were before alone
    if task == "image-classification":
        return data, Columns(_image_column(data, text), _column(data, label, _LABELS, "label"))
    if TOKENS in data.column_names and text in (None, TOKENS):
        return data, _token_columns(data, task, label)
    if task == "token-classification":
        words = _column(data, text, ("tokens",), "text")
        if _is_text(data.features[words]) or not _is_text(data.features[words], lists=True):
            raise _unfit(data, words, "lists of words", "text")
        return data, Columns(words, _column(data, label, _TAGS, "label"))
    if task == "question-answering":
        return data, _answer_columns(data, text, label)
    if task == "sequence-classification":
        return data, _with_tools(data, _text_column(data, text, _LABELS), _column(data, label, _LABELS, "label"))
    is_open = text is None and label is None and task in ("causal-lm", "seq2seq-lm")
    if is_open and (pair := _pair(data, task, structs)):
        return pair
    if task == "seq2seq-lm":
        source = _text_column(data, text, _TARGETS)
        if label is None and not any(name in _text_columns(data) for name in _TARGETS):
            return data, _with_tools(data, source, source)
        return data, _with_tools(data, source, _text_column(data, label, (), _TARGETS, option="label"))
    if task == "masked-lm" or label is None:
        advice = "Name it with --text-column" + (
            "; a prompt's completion with --label-column." if task == "causal-lm" else "."
        )
        return data, _with_tools(data, _text_column(data, text, (), advice=advice))
    completion = _text_column(data, label, (), option="label")
    return data, _with_tools(data, _text_column(data, text, (completion,)), completion)


def _pair(data: Any, task: str, structs: Iterable[str]) -> tuple[Any, Columns] | None:
    """What is read and what is to be learnt, in columns of usual names; None if there are none.

    Raises InvalidRequest for the pairs of a preference.
    """
    names, readable = data.column_names, _text_columns(data)
    if {"prompt", "completion"} <= set(readable):
        return data, _with_tools(data, "prompt", "completion")
    if any(name in readable for name in _SOURCES):
        return None
    for instruction, about, answer in _ALPACA:
        if {instruction, answer} <= set(readable):
            return _instructions(data, task, instruction, about, answer), Columns("prompt", "completion")
    if {"chosen", "rejected"} <= set(names):
        raise InvalidRequest(
            f"The columns chosen and rejected are pairs of a preference, which {task} does not train on.",
            "Search with autotune.tune(DPOTrainer(...)), or name one of them with --text-column.",
        )
    pairs = [[name for name in names if name.startswith(f"{struct}.")] for struct in structs]
    translations = [pair for pair in pairs if len(pair) == 2 and {*pair} <= {*readable}]
    return (data, Columns(*translations[0])) if task == "seq2seq-lm" and len(translations) == 1 else None


def _instructions(data: Any, task: str, instruction: str, about: str, answer: str) -> Any:
    """The data as prompt and completion: messages for a causal model, texts for others."""
    abouts = data[about] if about in data.column_names else [None] * len(data)
    prompts = ["\n\n".join(filter(None, parts)) for parts in zip(data[instruction], abouts, strict=True)]
    pairs = {"prompt": prompts, "completion": list(data[answer])}
    if task == "causal-lm":
        roles = {"prompt": "user", "completion": "assistant"}
        pairs = {
            name: [[{"role": roles[name], "content": text}] if text else [] for text in texts]
            for name, texts in pairs.items()
        }
    return datasets.Dataset.from_dict(pairs)


def _with_tools(data: Any, text: str, label: str = "") -> Columns:
    has_tools = "tools" in data.column_names and is_conversation(_first(data, text))
    return Columns(text, label, tools="tools" if has_tools else "")


def _token_columns(data: Any, task: str, label: str | None) -> Columns:
    """The columns of data that is tokenised already."""
    if not _is_list_of_ints(data.features[TOKENS]):
        raise _unfit(data, TOKENS, "token ids", "text")
    if task == "question-answering":
        starts = _column(data, label, ("start_positions",), "label")
        return Columns(TOKENS, starts, _column(data, None, ("end_positions",), "end_positions"))
    if task == "masked-lm" or (task == "causal-lm" and label is None and "labels" not in data.column_names):
        return Columns(TOKENS)
    usual = _LABELS if task == "sequence-classification" else _TAGS if task == "token-classification" else ("labels",)
    column = _column(data, label, usual, "label")
    if task != "sequence-classification" and not _is_list_of_ints(data.features[column]):
        raise _unfit(data, column, "lists of numbers", "label")
    return Columns(TOKENS, column)


def _answer_columns(data: Any, text: str | None, label: str | None) -> Columns:
    question = _column(data, None, ("question",), "question")
    context, answers = _column(data, text, ("context",), "text"), _column(data, label, ("answers",), "label")
    feature = _element(data.features[answers])
    if not isinstance(feature, Mapping) or not {"text", "answer_start"} <= feature.keys():
        raise _unfit(data, answers, "answers with text and answer_start", "label")
    return Columns(context, answers, question)


def describe(columns: Columns, data: Any, task: str, labels: Labels | None, tokenizer: Any) -> str:
    """What is made of the columns, in one line."""
    text, label, question = (repr(name) for name in (columns.text, columns.label, columns.question))
    if columns.text == TOKENS:
        return " and ".join(name for name in (text, label, question) if name != "''") + " are read as they are"
    match task:
        case "causal-lm" if columns.label:
            note = f"{text} is the prompt and {label} the completion, from which alone the model learns"
        case "seq2seq-lm" if columns.label == columns.text:
            note = f"the column {text} is source and target"
        case "seq2seq-lm":
            note = f"{text} is the source and {label} the target"
        case "causal-lm" | "masked-lm":
            note = f"{text} is the text"
        case "question-answering":
            note = f"{question} is answered from {text} as {label} says"
        case _:
            assert labels is not None
            kinds = {SINGLE: f"one of {labels.count} classes", SEVERAL: f"several of {labels.count} classes"}
            kind = kinds.get(labels.problem, "a number" if labels.count == 1 else f"{labels.count} numbers")
            what = {"token-classification": "holds the words", "image-classification": "is the image"}
            note = f"{text} {what.get(task, 'is the text')}, {label} {kind}"
    if not is_conversation(_first(data, columns.text)):
        return note
    if has_template(tokenizer):
        return f"{note}; conversations are written by the tokenizer's chat template"
    return f"{note}; conversations are written as lines of role and text: the tokenizer has no chat template"


def read_labels(data: Any, column: str, classes: int, task: str) -> Labels:
    """The classes in a column of labels, or of lists of labels; classes: as many as the model's config has.

    A list is several labels of a sample, for token-classification one of each word. Raises InvalidRequest.
    """
    feature = _element(data.features[column])
    rows = [value for value in data[column] if value is not None]
    several = task == "sequence-classification" and any(isinstance(row, list) for row in rows)
    problem = SEVERAL if several else SINGLE
    if isinstance(feature, datasets.ClassLabel):
        return Labels(feature.num_classes, problem=problem)
    values: set[Any] = set()
    for row in rows:
        labels = row if isinstance(row, list) else (row,)
        if any(isinstance(value, (list, dict)) for value in labels):
            raise _unfit(data, column, "labels", "label")
        values.update(value for value in labels if value == value)  # not NaN
    has_gaps = len(rows) < len(data) or None in values
    # -100 is what the loss ignores, not a class.
    values -= {None, -100}
    if not values:
        raise InvalidRequest(f"The column {column!r} holds no labels.", "Name another one with --label-column.")
    if not all(isinstance(value, (str, int, float)) for value in values):
        raise _unfit(data, column, "labels", "label")
    if several and (vector := _vector(rows, values)):
        return vector
    if any(isinstance(value, float) for value in values):
        whole = all(isinstance(value, str) or float(value).is_integer() for value in values)
        # A column of integers in which some are missing is read as floats.
        if not whole or not (has_gaps or values == set(range(len(values)))):
            if several or task != "sequence-classification":
                raise _unfit(data, column, "as many numbers in each row" if several else "classes", "label")
            return Labels(1, problem=NUMBERS)
    numbers = not any(isinstance(value, (str, bool)) for value in values)
    if numbers and min(values) >= 0 and max(values) < max(len(values), classes):
        return Labels(int(max(values)) + 1, problem=problem)
    # A mix of numbers and words can only be sorted as words.
    ordered = sorted(values, key=str if any(isinstance(value, str) for value in values) else None)
    return Labels(len(ordered), {value: number for number, value in enumerate(ordered)} | {-100: -100}, problem)


def _vector(rows: list[Any], values: set[Any]) -> Labels | None:
    """Labels that are lists of as many numbers each: of 0 and 1 (or between) for classes, else several numbers to predict."""
    sizes = {len(row) for row in rows}
    size = sizes.pop()
    if sizes or size < 2 or any(None in row for row in rows) or any(isinstance(value, str) for value in values):
        return None
    if all(0 <= value <= 1 for value in values):
        return Labels(size, problem=SEVERAL, is_vector=True)
    return Labels(size, problem=NUMBERS, is_vector=True) if any(isinstance(value, float) for value in values) else None


def _unfit(data: Any, column: str, wanted: str, option: str) -> InvalidRequest:
    message = f"The column {column!r} holds {_kind(data, column)}, not {wanted}."
    return InvalidRequest(message, f"Name another one with --{option}-column.")


def texts_of(data: Any, columns: Columns) -> Iterator[str]:
    """Every text of the columns read, for training a tokenizer; lists of words come as their words."""
    for column in dict.fromkeys((columns.text, columns.question, columns.label)):
        if not column or not (_is_text(data.features[column], lists=True) or is_conversation(_first(data, column))):
            continue
        for value in data[column]:
            if is_conversation(value):
                yield chat_text(messages_of(value), None)
            elif isinstance(value, list):
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
    data: Any,
    requested: str | None,
    others: tuple[str, ...],
    usual: tuple[str, ...] = _SOURCES,
    option: str = "text",
    advice: str = "",
) -> str:
    """The requested column of text, the usual one, or the only one that is not among the others."""
    texts = _text_columns(data)
    if requested is None:
        candidates = [name for name in texts if name not in others]
        conversations = [name for name in candidates if not _is_text(data.features[name])]
        for chosen in ([name for name in usual if name in texts][:1], conversations, candidates):
            if len(chosen) == 1:
                return chosen[0]
        raise InvalidRequest(
            f"Which column holds the text? The data's columns are {_listed(data)}.",
            advice or f"Name it with --{option}-column.",
        )
    column: str = _column(data, requested, (), option)
    if column not in texts:
        raise _unfit(data, column, "text", option)
    return column


def _text_columns(data: Any) -> list[str]:
    """The columns of text or of conversations."""
    return [name for name, feature in data.features.items() if _is_text(feature) or is_conversation(_first(data, name))]


def _image_column(data: Any, requested: str | None) -> str:
    images = [name for name, feature in data.features.items() if isinstance(feature, datasets.Image)]
    column = _column(data, requested, (), "text") if requested else (images[0] if len(images) == 1 else "")
    if column not in images:
        raise InvalidRequest(
            f"Which column holds the images? The data's columns are {_listed(data)}.",
            "Use an image folder, or name the column with --text-column.",
        )
    return column


def _first(data: Any, column: str) -> Any:
    """The first value that is not empty, in the first rows of a column of lists of objects; None for any other column."""
    if not isinstance(_element(data.features[column]), _OBJECTS):
        return None
    rows = data.select_columns([column])[:_LOOKED_AT_ROWS]
    return next((value for value in rows[column] if value), None)


def _element(feature: Any) -> Any:
    """What the lists of a column hold; for a column of something else, that."""
    return getattr(feature, "feature", feature[0] if isinstance(feature, list) else feature)


def _is_list_of_ints(feature: Any) -> bool:
    inner = _element(feature)
    return inner is not feature and isinstance(inner, datasets.Value) and "int" in inner.dtype


def _is_text(feature: Any, lists: bool = False) -> bool:
    if lists:
        feature = _element(feature)
    return isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string")


def _listed(data: Any) -> str:
    return ", ".join(f"{name} ({_kind(data, name)})" for name in data.column_names)


def _kind(data: Any, column: str) -> str:
    feature = data.features[column]
    if is_conversation(_first(data, column)):
        return "conversations"
    return "text" if _is_text(feature) else str(getattr(feature, "dtype", None) or type(feature).__name__)
