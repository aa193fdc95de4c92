"""The user's Python objects, unpickled in the child."""

import dataclasses
import hashlib
import io
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from autotune.core import AutotuneError, InvalidRequest, TuningRequest, Workload
from autotune.core.note import Note, NoteKind
from autotune.space.settings import checkpointing
from autotune.space.setup import BATCH_FIELDS
from autotune.workload import extract
from autotune.workload.data.rows import length_of, read_rows
from autotune.workload.data.sampling import quantiles, user_collating
from autotune.workload.data.workers import why_no_workers
from autotune.workload.extract import BUILD
from autotune.workload.hub import first_line
from autotune.workload.model.code import check_code, code_of
from autotune.workload.model.pickling import OF_LOADER, received
from autotune.workload.model.sent_model import BUILT, CONFIG, ITSELF, Prebuilt, WithoutWeights, layers_digest

LOOK_S = 2.0
"""Longest search for the largest sample of the user's dataset: a dataset that decodes files has no lengths to read."""

FIRST_LOOK = 32
"""Samples of which batches are made, to know whether the samples themselves show how large these are."""


@dataclass(frozen=True)
class UserObjects:
    """The user's objects, as the Trainer takes them; None if one was not given."""

    model_init: Callable[..., Any] | None = None  #: () -> model
    train_dataset: Any = None
    data_collator: Any = None
    processing_class: Any = None
    trainer_class: Any = None
    trainer_arguments: Mapping[str, Any] = field(default_factory=dict)  #: further ones (optimizers, ...)
    code: dict[str, str] = field(default_factory=dict)  #: of the caller's process, see `code_of`
    on_arguments: Mapping[str, Any] = field(default_factory=dict)  #: their attributes that are no fields
    callbacks: Sequence[Any] = ()  #: for the Trainer, without those that its class adds itself
    build: Callable[[Any], Any] | None = None  #: (arguments) -> Trainer, in the place of all parts
    own_optimizer: str = ""  #: class of the user's optimizer, ANY if the Trainer class makes it; else empty
    whole_steps: bool = False  #: a step cannot be measured with fewer micro-steps than it has
    identity: str = ""  #: differs for other parts, as far as the dataset does not
    no_workers: str = ""  #: reason why the caller's process cannot start loader workers
    built: Any = None

    @classmethod
    def opened(cls, objects: bytes, arguments: Any = None) -> "UserObjects":
        """The objects of the bytes of `pickling.sent`; empty for no bytes. Builds the model if a part refers to it.

        arguments: of the Trainer, to which parts may refer; by default a blank object.
        """
        if not objects:
            return cls()
        stream, built = io.BytesIO(objects), list[Any]()
        received(stream)  # the arguments' class: see `arguments_class`
        model_init = received(stream)["model_init"]

        def model() -> Any:
            built[:] = built or [model_init()]
            return built[0]

        parts = received(stream, model, object.__new__(TrainingArguments) if arguments is None else arguments)
        return cls(model_init=model_init, built=built[0] if built else None, **parts)

    def model(self) -> Any:
        """The model that the parts refer to, else a new one."""
        assert self.model_init is not None
        return self.model_init() if self.built is None else self.built

    def outline(self) -> Any:
        """The model, without storage if that is enough."""
        return self.model_init.model if isinstance(self.model_init, WithoutWeights) else self.model()

    def trainer(self, arguments: Any) -> Any:
        """The Trainer that the user's function builds with these arguments. Raises InvalidRequest if it is none or has others."""
        assert self.build is not None
        vars(arguments).update(self.on_arguments)
        before = {item.name: extract.unshared(getattr(arguments, item.name)) for item in dataclasses.fields(arguments)}
        train = Trainer.train

        def refuse(*_: Any, **__: Any) -> None:
            raise InvalidRequest("build(args) calls train().", "Let it return the Trainer, and train that afterwards.")

        Trainer.train = refuse
        try:
            trainer = self.build(arguments)
        finally:
            Trainer.train = train
        if not isinstance(trainer, Trainer):
            raise InvalidRequest(
                f"build(args) returns a {type(trainer).__name__}.", "Let it return a transformers Trainer."
            )
        checked = BATCH_FIELDS if trainer.args is arguments else before
        if other := [field for field in checked if getattr(trainer.args, field, None) != before[field]]:
            raise InvalidRequest(
                f"build(args) makes a Trainer whose {other[0]} is {getattr(trainer.args, other[0], None)!r}, and args says "
                f"{before[other[0]]!r}.",
                "Give the Trainer the args that the function is given.",
            )
        return trainer

    def parts(self) -> dict[str, Any]:
        """The Trainer's other arguments."""
        parts = {
            "train_dataset": self.train_dataset,
            "data_collator": self.data_collator,
            "processing_class": self.processing_class,
        }
        # None among the further ones was given as such.
        return {name: value for name, value in parts.items() if value is not None} | dict(self.trainer_arguments)


def arguments_class(objects: bytes) -> tuple[type, dict[str, Any]]:
    """(the user's class of arguments, fields that it needs in addition to an order's).

    These are the fields that only this class has, and `TrainingArguments`' defaults if this class has others: an order
    leaves out fields at their defaults.
    """
    sent: dict[str, Any] = received(io.BytesIO(objects)) if objects else {}
    kind: type = sent.get("arguments_class") or TrainingArguments
    usual, own = (
        {
            field.name: field.default
            for field in dataclasses.fields(arguments)
            if field.init and field.name != "output_dir"
        }
        for arguments in (TrainingArguments, kind)
    )
    other = {name: value for name, value in usual.items() if own.get(name, value) not in (value, dataclasses.MISSING)}
    return kind, {**other, **sent.get("user_fields", {})}


def user_workload(request: TuningRequest, objects: bytes) -> Workload:
    """The workload of the user's objects; builds the model once. Raises InvalidRequest, one line, for whatever they raise."""
    user = None
    try:
        user = UserObjects.opened(objects)
        if user.build is not None:
            return _built_workload(request, user, *arguments_class(objects))
        model = user.outline()
        check_code(user.code, user.trainer_class or Trainer, model)
        return workload_of(request, user, model)
    except AutotuneError:
        raise
    except Exception as error:  # whatever the user's code raises
        traceback.print_exc()
        why = f"{type(error).__name__}: {first_line(error)}"
        if user is not None and user.build is not None:
            raise InvalidRequest(
                f"build(args) raises {why}.", "Each trial calls it in a process of its own."
            ) from error
        raise InvalidRequest(f"Your objects cannot be opened in another process: {why}.", BUILD) from error


def _built_workload(request: TuningRequest, user: UserObjects, kind: type, fields: Mapping[str, Any]) -> Workload:
    of_reader = {"report_to": "none", "push_to_hub": False, "use_cpu": request.device == "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        values = {"output_dir": folder, **fields, **request.training_args, **of_reader}
        trainer = user.trainer(extract.arguments(kind, values))
    extract.check_training(trainer)
    here = code_of({type(trainer)}, trainer.model.modules())
    check_code({name: digest for name, digest in user.code.items() if name in here}, type(trainer), trainer.model)
    callbacks = extract.user_callbacks(trainer)
    workload = trainer_workload(request, trainer, user.whole_steps, extract.identity_of(trainer, callbacks))
    problem = user.no_workers
    notes = (Note(NoteKind.NO_WORKERS, detail=problem),) if problem else ()
    own_parts = repr((user.identity, workload.own_parts))
    return replace(workload, source=BUILT, built=True, own_parts=own_parts, no_workers=problem, notes=notes)


def trainer_workload(
    request: TuningRequest, trainer: Any, whole_steps: bool, identity: str, read: Sequence[int] | None = None
) -> Workload:
    """The workload of a built Trainer. read: see `workload_of`."""
    user = UserObjects(
        model_init=Prebuilt(trainer.model),
        train_dataset=trainer.train_dataset,
        data_collator=trainer.data_collator,
        processing_class=trainer.processing_class,
        trainer_class=type(trainer),
        callbacks=extract.user_callbacks(trainer),
        own_optimizer=extract.optimizer_name(trainer),
        whole_steps=whole_steps,
        no_workers=why_no_workers({name: getattr(trainer, name) for name in OF_LOADER}),
        identity=identity,
    )
    return workload_of(request, user, trainer.model, read)


def workload_of(request: TuningRequest, user: UserObjects, model: Any, read: Sequence[int] | None = None) -> Workload:
    """The workload of these objects and their model. read: `sizes`, if they are known. Raises InvalidRequest for little data."""
    samples = length_of(user.train_dataset)
    if samples is not None and samples < request.global_batch_size:
        raise InvalidRequest(
            f"The train_dataset has {samples} samples, fewer than one global batch of {request.global_batch_size}: the only "
            "step of an epoch takes a short batch.",
            f"Search with more data, or with global_batch_size={samples}.",
        )
    parameters = list(model.parameters())
    bytes_each = [parameter.numel() * parameter.element_size() for parameter in parameters]
    dtypes = Counter[str]()
    for parameter in parameters:
        if parameter.is_floating_point():
            dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    config = getattr(model, "config", None)
    read = sizes(user.train_dataset, user.data_collator) if read is None else read
    unseen = _unseen_sizes(samples, read)
    notes = [Note(NoteKind.NO_WORKERS, detail=user.no_workers)] if user.no_workers else []
    notes += [Note(NoteKind.UNSEEN_SIZES, detail=unseen)] if unseen else []
    lengths = quantiles(read)
    collating, pad_to_multiple_of = user_collating(user.data_collator, user.processing_class)
    return Workload(
        name=request.model,
        task=request.task or "custom",
        source=CONFIG if isinstance(user.model_init, WithoutWeights) else ITSELF,
        model_config=config.to_dict() if config is not None and hasattr(config, "to_dict") else {},
        architecture=type(model).__name__,
        sequence_length=request.sequence_length,
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(bytes_each),
        gradient_bytes=sum(
            size for size, parameter in zip(bytes_each, parameters, strict=True) if parameter.requires_grad
        ),
        supports_checkpointing=getattr(model, "supports_gradient_checkpointing", None),
        checkpointing="" if (on := checkpointing.enabled_on(model)) == "none" else on,
        attention=str(getattr(config, "_attn_implementation", None) or "eager"),
        collating=collating,
        pad_to_multiple_of=pad_to_multiple_of,
        data_identity=getattr(user.train_dataset, "_fingerprint", None) or _identity_of(user, samples or 0, read),
        text_source="the caller's own dataset",
        samples=samples or 0,
        longest=(read.index(max(read)),) if lengths else (),
        lengths=tuple(round(size / lengths[-1], 4) for size in lengths),
        user_objects=True,
        no_workers=user.no_workers,
        own_optimizer=user.own_optimizer,
        whole_steps=user.whole_steps,
        weights_dtype=max(dtypes, key=dtypes.__getitem__, default="float32"),
        own_layers=layers_digest(model),
        own_parts=user.identity,
        notes=tuple(notes),
    )


def _identity_of(user: UserObjects, samples: int, read: Sequence[int]) -> str:
    """Digest of the user's parts by names, length and the first samples' sizes: the same in every process."""
    names = [
        getattr(part, "__qualname__", type(part).__qualname__) for part in (user.data_collator, user.trainer_class)
    ]
    facts = repr((type(user.train_dataset).__qualname__, samples, names, read[:3]))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def sizes(dataset: Any, collator: Any = None) -> list[int]:
    """Numbers in a batch of each sample alone, as far as they are read in `LOOK_S`; empty if they are unknown, as of a stream.

    Those of the sample itself where the collator makes no batch of it alone; unknown if these are all alike (a label).
    """
    rows = read_rows(dataset, LOOK_S)
    first = list(islice(rows, FIRST_LOOK))
    if all(_collated_size(collator, row) for row in first):
        return list(takewhile(bool, (_collated_size(collator, row) for row in chain(first, rows))))
    alone = list(takewhile(bool, map(_size, chain(first, rows))))
    return alone if len({*alone}) > 1 else []


def _unseen_sizes(samples: int | None, read: Sequence[int]) -> str:
    """Reason why the largest sample may be unknown; else empty."""
    if samples is None or not read:
        return (
            "neither the samples nor the collator show their sizes" if samples else "the samples are those of a stream"
        )
    return f"only the first {len(read):,} of {samples:,} samples were looked at" if len(read) < samples else ""


def _collated_size(collator: Any, row: Any) -> int:
    """Numbers in a batch of this row; 0 if the collator makes none."""
    try:
        return _size(collator([row]))
    except Exception:  # whatever the user's code raises for a row alone, or with the columns that the Trainer removes
        return 0


def _size(sample: Any) -> int:
    """Numbers in a sample's tensors, arrays and lists; 0 if it has none."""
    if isinstance(sample, torch.Tensor):
        return int(sample.numel())
    if isinstance(sample, Mapping):
        return sum(map(_size, sample.values()))
    size = getattr(sample, "size", None)  # numpy's arrays; an image's is its width and height
    if isinstance(size, int):
        return size
    if isinstance(sample, (list, tuple)) and sample and not isinstance(sample[0], (int, float)):
        return sum(map(_size, sample))
    return len(sample) if isinstance(sample, (list, tuple)) else 0
