"""Columns of the data that a task reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import datasets

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.workload.data.chat import chat_text, has_template, is_conversation, messages_of
from autotune.workload.data.features import element, first_objects, is_text, kind_of, unfit
from autotune.workload.data.labels import NUMBERS, Labels

_SOURCES = ("messages", "conversations", "text")
_TARGETS = ("target", "summary", "completion", "labels", "label")
_LABELS = ("label", "labels")
_TAGS = ("ner_tags", "tags", "labels", "label")
_TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text", "text_pair"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
)
"""Columns of GLUE, SuperGLUE and of data for rankers: two texts of one sample."""
TOKENS = "input_ids"
"""Column of tokenised samples."""


@dataclass(frozen=True)
class Columns:
    """The columns of the data that a task reads; label is empty if the task has none or makes the labels."""

    text: str  #: of texts, conversations, questions, lists of words or images
    label: str = ""  #: of labels, tags, answers, or of the text that is to be learnt
    pair: str = ""  #: of the second text of a sample, such as a question's context
    tools: str = ""  #: of functions that a conversation may call


def choose_columns(data: Any, task: str, text: str | None, label: str | None) -> tuple[Any, Columns]:
    """The requested columns, else the usual ones, and the data with them: fields of nested rows become columns.

    Raises InvalidRequest if one is missing or unfit for the task.
    """
    structs = [name for name, feature in data.features.items() if isinstance(feature, (dict, datasets.Translation))]
    if structs and task != "question-answering":
        data = data.flatten().with_format(None)  # a format would show only the former columns
    if task == "image-classification":
        return data, Columns(_image_column(data, text), _column(data, label, _LABELS, "label"))
    if TOKENS in data.column_names and text in (None, TOKENS):
        raise InvalidRequest(
            "The data is tokenised already.", "Give it to a Trainer and search for that: autotune.tune(build, args)."
        )
    if task == "token-classification":
        words = _column(data, text, ("tokens",), "text")
        if is_text(data.features[words]) or not is_text(data.features[words], lists=True):
            raise unfit(data, words, "lists of words", "text")
        return data, Columns(words, _column(data, label, _TAGS, "label"))
    if task == "question-answering":
        return data, _answer_columns(data, text, label)
    if task == "sequence-classification":
        advice = "Name it with --text-column, or a pair with --text-column=FIRST,SECOND."
        first, second = _text_pair(data, text) or (_text_column(data, text, _LABELS, advice=advice), "")
        return data, replace(_with_tools(data, first, _column(data, label, _LABELS, "label")), pair=second)
    is_open = text is None and label is None and task in ("causal-lm", "seq2seq-lm")
    if is_open and (pair := _pair(data, task, structs)):
        return data, pair
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


def _pair(data: Any, task: str, structs: list[str]) -> Columns | None:
    """The columns to read and to learn, of usual names; None if there are none.

    Raises InvalidRequest for the pairs of a preference.
    """
    names, readable = data.column_names, _text_columns(data)
    if {"prompt", "completion"} <= set(readable):
        return _with_tools(data, "prompt", "completion")
    if any(name in readable for name in _SOURCES):
        return None
    if {"chosen", "rejected"} <= set(names):
        raise InvalidRequest(
            f"The columns chosen and rejected are pairs of a preference, which {task} does not train on.",
            "Search with autotune.tune(DPOTrainer(...)), or name one of them with --text-column.",
        )
    pairs = [[name for name in names if name.startswith(f"{struct}.")] for struct in structs]
    translations = [pair for pair in pairs if len(pair) == 2 and {*pair} <= {*readable}]
    return Columns(*translations[0]) if task == "seq2seq-lm" and len(translations) == 1 else None


def _text_pair(data: Any, requested: str | None) -> tuple[str, str] | None:
    """Two columns of text that a sample consists of: the requested `FIRST,SECOND`, or of usual names; None if there are none."""
    if requested is not None:
        first, comma, second = requested.partition(",")
        if requested in data.column_names or not comma:
            return None
        return _text_column(data, first.strip(), ()), _text_column(data, second.strip(), ())
    texts = {name for name, feature in data.features.items() if is_text(feature)}
    return next((pair for pair in _TEXT_PAIRS if {*pair} <= texts and not texts & {*_SOURCES} - {*pair}), None)


def _with_tools(data: Any, text: str, label: str = "") -> Columns:
    has_tools = "tools" in data.column_names and is_conversation(first_objects(data, text))
    return Columns(text, label, tools="tools" if has_tools else "")


def _answer_columns(data: Any, text: str | None, label: str | None) -> Columns:
    question = _column(data, None, ("question",), "question")
    context, answers = _column(data, text, ("context",), "text"), _column(data, label, ("answers",), "label")
    feature = element(data.features[answers])
    if not isinstance(feature, Mapping) or not {"text", "answer_start"} <= feature.keys():
        raise unfit(data, answers, "answers with text and answer_start", "label")
    return Columns(question, answers, context)


def describe(columns: Columns, data: Any, task: str, labels: Labels | None, tokenizer: Any) -> str:
    """The use of the columns, in one line."""
    texts = " and ".join(repr(name) for name in (columns.text, columns.pair) if name)
    note = f"the {'image' if task == 'image-classification' else 'text'} is {texts}"
    if columns.label:
        note += f", the label {columns.label!r}"
    if labels:
        note += " (numbers)" if labels.problem == NUMBERS else f" ({labels.count} classes)"
    if not is_conversation(first_objects(data, columns.text)):
        return note
    if has_template(tokenizer):
        return f"{note}; conversations are written by the tokenizer's chat template"
    return f"{note}; conversations are written as lines of role and text: the tokenizer has no chat template"


def texts_of(data: Any, columns: Columns) -> Iterator[str]:
    """Every text of the columns read, for training a tokenizer; lists of words come as their words."""
    for column in dict.fromkeys((columns.text, columns.pair, columns.label)):
        if not column or not (
            is_text(data.features[column], lists=True) or is_conversation(first_objects(data, column))
        ):
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
    """The requested column of text, the usual one, or the only column of text that is not among the others."""
    texts = _text_columns(data)
    if requested is None:
        candidates = [name for name in texts if name not in others]
        conversations = [name for name in candidates if not is_text(data.features[name])]
        for chosen in ([name for name in usual if name in texts][:1], conversations, candidates):
            if len(chosen) == 1:
                return chosen[0]
        raise InvalidRequest(
            f"Which column holds the text? The data's columns are {_listed(data)}.",
            advice or f"Name it with --{option}-column.",
        )
    column: str = _column(data, requested, (), option)
    if column not in texts:
        raise unfit(data, column, "text", option)
    return column


def _text_columns(data: Any) -> list[str]:
    """The columns of text or of conversations."""
    return [
        name
        for name, feature in data.features.items()
        if is_text(feature) or is_conversation(first_objects(data, name))
    ]


def _image_column(data: Any, requested: str | None) -> str:
    images = [name for name, feature in data.features.items() if isinstance(feature, datasets.Image)]
    column = _column(data, requested, (), "text") if requested else (images[0] if len(images) == 1 else "")
    if column not in images:
        raise InvalidRequest(
            f"Which column holds the images? The data's columns are {_listed(data)}.",
            "Use an image folder, or name the column with --text-column.",
        )
    return column


def _listed(data: Any) -> str:
    return ", ".join(f"{name} ({kind_of(data, name)})" for name in data.column_names)
