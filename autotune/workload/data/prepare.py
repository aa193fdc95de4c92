"""Prepared data: a request's data tokenised once and kept on disk for every probe."""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets

from autotune.core.errors import InvalidRequest, StorageFailed
from autotune.core.io import Serializable, read_json, write_json
from autotune.core.note import Note, NoteKind
from autotune.core.paths import PREPARING, named
from autotune.core.request import TuningRequest
from autotune.core.scratch import scratch_below
from autotune.workload.data import images
from autotune.workload.data.columns import TOKENS, Columns, choose_columns, describe, texts_of
from autotune.workload.data.encode import Encoder
from autotune.workload.data.labels import SINGLE, Labels, read_labels
from autotune.workload.data.reading import read_data
from autotune.workload.data.sampling import quantiles
from autotune.workload.data.sources import DataSource, find_data
from autotune.workload.data.tokenizer import TokenizerPlan, open_tokenizer, plan_tokenizer, train_tokenizer
from autotune.workload.hub import first_line
from autotune.workload.model.config import image_shape

MOST_TEXTS = 50_000
MOST_IMAGES = 5_000
"""Rows kept of larger data, drawn at random: a probe sees fewer, and their lengths are spread as in the whole."""
_FORMAT = 7
_SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


@dataclass(frozen=True)
class PreparedData(Serializable):
    """Data ready for probes."""

    folder: str  #: contains `data` and, for text, `tokenizer`
    identity: str  #: differs for other data
    text_source: str  #: tokenizer or image transform, for people
    samples: int  #: in `data`
    num_labels: int | None = None  #: classes to set in the model's config; None to keep the config's
    problem_type: str | None = None  #: of sequence classification, to set in the model's config
    special_ids: tuple[tuple[str, int], ...] = ()  #: token ids that the config must share with the tokenizer
    longest: tuple[int, ...] = ()  #: samples with the most tokens and the most labels; empty if all are alike
    lengths: tuple[float, ...] = ()  #: quantiles of the samples' tokens; empty if all are alike
    notes: tuple[Note, ...] = ()


def prepare_data(
    request: TuningRequest, config: Any, task: str, sequence_length: int | None, cache: Path
) -> PreparedData:
    """The request's dataset, tokenised for the task and saved below the cache, or as an earlier call saved it there.

    Raises InvalidRequest, one line with advice, for data that cannot be read or used; StorageFailed if the cache
    cannot be written.
    """
    datasets.disable_progress_bars()
    source = find_data(request.dataset or "", images=task == "image-classification")
    plan = None if task == "image-classification" else plan_tokenizer(request.tokenizer, request.model, config)
    recipe = _Recipe(request, config, task, sequence_length, plan)
    if source.identity and (saved := _saved(cache / recipe.key(source.identity))):
        return recipe.checked(saved)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Below the cache, so that a finished result moves into place at once.
        with scratch_below(cache, PREPARING) as scratch:
            prepared = _read_and_prepare(recipe, source, cache, scratch)
    except OSError as error:
        raise StorageFailed(
            f"The prepared data cannot be written to {cache}: {error.strerror or first_line(error)}.",
            "Free some space, or let XDG_CACHE_HOME name a folder that can be written.",
        ) from error
    return recipe.checked(prepared)


@dataclass(frozen=True)
class _Recipe:
    """Request's fields that determine prepared data, in addition to the data itself."""

    request: TuningRequest
    config: Any
    task: str
    sequence_length: int | None
    plan: TokenizerPlan | None

    @property
    def most_rows(self) -> int:
        return max(MOST_IMAGES if self.task == "image-classification" else MOST_TEXTS, self.request.global_batch_size)

    def key(self, identity: str) -> str:
        """A folder's name, a hash of everything that changes the samples."""
        request, fields = self.request, ("model_type", "vocab_size", "type_vocab_size", "num_labels", *_SPECIAL_IDS)
        facts = [_FORMAT, identity, request.dataset_split, request.text_column, request.label_column, self.task]
        facts += [self.sequence_length, self.most_rows, self.plan and self.plan._asdict()]
        facts += [getattr(self.config, name, None) for name in fields]
        facts += [image_shape(self.config) if self.plan is None else None]
        return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:20]

    def checked(self, prepared: PreparedData) -> PreparedData:
        """Returns the data; raises InvalidRequest if it is smaller than one batch."""
        if prepared.samples < self.request.global_batch_size:
            raise InvalidRequest(
                f"The data {self.request.dataset} has {prepared.samples} usable samples, "
                f"which is smaller than one batch of {self.request.global_batch_size}.",
                "Use more data or a smaller global batch size.",
            )
        return prepared


def _read_and_prepare(recipe: _Recipe, source: DataSource, cache: Path, scratch: Path) -> PreparedData:
    data = read_data(source, recipe.request.dataset_split, scratch / "raw")
    identity = source.identity or f"{source.name} {data._fingerprint}"
    target = cache / recipe.key(identity)
    if saved := _saved(target):
        return saved
    fresh = scratch / "fresh"
    prepared = _prepare(recipe, source, identity, data, fresh)
    write_json(fresh / "prepared.json", prepared.to_dict())
    try:
        os.rename(fresh, target)
    except OSError:  # another process was faster, with the same result or with one that is half-written
        if _saved(target) is None:
            shutil.rmtree(target, ignore_errors=True)
            os.rename(fresh, target)
    return replace(prepared, folder=str(target))


def _prepare(recipe: _Recipe, source: DataSource, identity: str, data: Any, folder: Path) -> PreparedData:
    """Writes `data` and `tokenizer` into the folder, and describes them."""
    request, task, notes = recipe.request, recipe.task, list[Note]()
    if len(data) > recipe.most_rows:
        notes.append(Note(NoteKind.SAMPLED_ROWS, {"rows": recipe.most_rows, "all_rows": len(data)}))
        data = data.shuffle(seed=0).select(range(recipe.most_rows))
    data, columns = choose_columns(data, task, request.text_column, request.label_column)
    labels = None
    if task in ("sequence-classification", "token-classification", "image-classification"):
        labels = read_labels(data, columns.label, recipe.config.num_labels, task)
        if task != "token-classification":  # its rows have a label for each word
            data = _labelled(data, columns, labels, notes)
    rows, tokenizer = len(data), None
    if recipe.plan is not None:
        tokenizer, text_source = _tokenizer(recipe, columns, data)
    if task == "seq2seq-lm" or data.column_names != ["text"]:  # plain lines of text need no note
        notes.append(Note(NoteKind.COLUMNS, detail=describe(columns, data, task, labels, tokenizer)))
    if tokenizer is None:
        data, text_source = _image_rows(recipe, columns, labels, data)
    else:
        tokenizer.save_pretrained(str(folder / "tokenizer"))
        data = _text_rows(recipe, columns, labels, data, tokenizer, folder.parent / "tokens.arrow")
    if not len(data):
        raise InvalidRequest(f"The data {source.name} has no row to learn from.", "Choose other data or columns.")
    data.save_to_disk(str(folder / "data"))
    if len(data) < rows:
        notes.append(Note(NoteKind.SHORT_ROWS, {"rows": rows - len(data), "all_rows": rows}))
    return PreparedData(
        folder=str(folder),
        identity=f"{identity}, split {request.dataset_split}",
        text_source=text_source,
        samples=len(data),
        num_labels=_classes_to_set(labels, recipe.config.num_labels),
        problem_type=labels.problem if labels and task == "sequence-classification" else None,
        special_ids=tuple(
            (name, number) for name in _SPECIAL_IDS if (number := getattr(tokenizer, name, None)) is not None
        ),
        longest=_longest(data),
        lengths=_lengths(data),
        notes=tuple(notes),
    )


def _labelled(data: Any, columns: Columns, labels: Labels, notes: list[Note]) -> Any:
    """The rows that have a label."""
    places = [place for place, value in enumerate(data[columns.label]) if labels.of(value) is not None]
    if len(places) == len(data):
        return data
    notes.append(Note(NoteKind.UNLABELLED_ROWS, {"rows": len(data) - len(places), "all_rows": len(data)}))
    return data.select(places)


def _tokenizer(recipe: _Recipe, columns: Columns, data: Any) -> tuple[Any, str]:
    assert recipe.plan is not None
    if not recipe.plan.place:
        tokenizer = train_tokenizer(texts_of(data, columns), recipe.config)
        return tokenizer, f"byte-pair tokenizer trained on the data ({len(tokenizer)} tokens)"
    tokenizer = open_tokenizer(recipe.plan, recipe.config, recipe.request.trust_remote_code)
    place = recipe.plan.place
    if recipe.task == "masked-lm" and tokenizer.mask_token is None:
        raise InvalidRequest(f"The tokenizer {place!r} has no mask token, which masked-lm needs.", "Use another one.")
    if recipe.task in ("token-classification", "question-answering") and not tokenizer.is_fast:
        raise InvalidRequest(
            f"The tokenizer {place!r} cannot say which token comes from which word, which {recipe.task} needs.",
            "Use a fast one (with a tokenizer.json).",
        )
    return tokenizer, f"tokenizer of {named(place)} ({len(tokenizer)} tokens)"


def _text_rows(recipe: _Recipe, columns: Columns, labels: Labels | None, data: Any, tokenizer: Any, file: Path) -> Any:
    assert recipe.sequence_length is not None
    return data.map(
        Encoder(recipe.task, columns, tokenizer, recipe.sequence_length, labels),
        batched=True,
        remove_columns=data.column_names,
        load_from_cache_file=False,
        cache_file_name=str(file),
        # Hashing the function would mean pickling the tokenizer; the folder's name already tells results apart.
        new_fingerprint=hashlib.sha256(str(file).encode()).hexdigest()[:16],
    )


def _image_rows(recipe: _Recipe, columns: Columns, labels: Labels | None, data: Any) -> tuple[Any, str]:
    """Rows of `image`, still encoded, and `labels`."""
    assert labels is not None
    shape = image_shape(recipe.config)
    if shape[0] not in images.MODES:
        raise InvalidRequest(
            f"Images of {shape[0]} channels cannot be read from files.", "Leave --dataset out to use random ones."
        )
    classes = [labels.of(value) for value in data[columns.label]]
    data = data.select_columns([columns.text])
    if columns.text != "image":
        data = data.rename_column(columns.text, "image")
    data = data.add_column("labels", classes)
    try:
        if len(data):
            images.ImageSamples(data, shape)[0]
    except ValueError as error:
        raise InvalidRequest(str(error), "Fix it, or take it out of the data.") from error
    return data, f"images resized to {shape[1]} x {shape[2]} in the data loader"


def _longest(data: Any) -> tuple[int, ...]:
    """Places of the rows with the longest lists, column by column: together they pad a batch to all its maxima."""
    import pyarrow.compute as arrow
    from pyarrow import types

    places = []
    for name in data.column_names:
        column = data.with_format("arrow")[name]
        if types.is_list(column.type) or types.is_large_list(column.type):
            lengths = arrow.list_value_length(column)
            extremes = arrow.min_max(lengths).as_py()
            if extremes["min"] != extremes["max"]:
                places.append(arrow.index(lengths, extremes["max"]).as_py())
    return tuple(dict.fromkeys(places))


def _lengths(data: Any) -> tuple[float, ...]:
    """Quantiles of the rows' tokens; none of images."""
    import pyarrow.compute as arrow

    if TOKENS not in data.column_names:
        return ()
    return quantiles(arrow.list_value_length(data.with_format("arrow")[TOKENS]).to_pylist())


def _classes_to_set(labels: Labels | None, classes: int) -> int | None:
    """The number of outputs that the data needs if the config has another one; more classes than the data has do no harm."""
    if labels is None or labels.count == classes:
        return None
    if labels.problem != SINGLE:
        return labels.count
    return max(labels.count, 2) if labels.count > classes or classes == 1 else None


def _saved(folder: Path) -> PreparedData | None:
    """Prepared data of an earlier call in the folder, if any."""
    try:
        return replace(PreparedData.from_dict(read_json(folder / "prepared.json")), folder=str(folder))
    except (OSError, KeyError, TypeError, ValueError):
        return None
