"""What a caller brought as Python objects: opened in the child, from bytes that nobody opened before."""

import dataclasses
import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments

from autotune.core.errors import InvalidRequest
from autotune.core.request import TuningRequest
from autotune.core.workload import Workload
from autotune.space.settings import checkpointing
from autotune.workload.data.sampling import own_collating
from autotune.workload.model.own_layers import layers_digest
from autotune.workload.model.pickling import received
from autotune.workload.model.rebuild import FromConfig, made_by, takes_trial

LOOK_S = 2.0
"""How long the caller's dataset is looked through for its largest sample: one that decodes files has no lengths to ask."""


@dataclass(frozen=True)
class UserObjects:
    """model_init: () -> model. The rest as the Trainer takes them; None where it was not given.

    trainer_arguments: further ones of the Trainer class (optimizers, compute_loss_func, ...). callbacks: for the
    Trainer, but for those whose class it adds by itself.
    own_optimizer: name of the class of the caller's own optimizer, ANY where the Trainer class makes it; else empty.
    prepared: whether the dataset comes from a built Trainer, which did with it what its class does.
    whole_steps: whether a step with fewer micro-steps than asked for tells nothing of one with all.
    identity: what tells these parts from others, as far as the dataset does not.
    """

    model_init: Callable[..., Any] | None = None
    train_dataset: Any = None
    data_collator: Any = None
    processing_class: Any = None
    trainer_class: Any = None
    trainer_arguments: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Sequence[Any] = ()
    own_optimizer: str = ""
    prepared: bool = False
    whole_steps: bool = False
    identity: str = ""
    built: Any = None

    @classmethod
    def opened(cls, objects: bytes) -> "UserObjects":
        """From the bytes that `sending.sent` made; none of them for no bytes. Builds the model where a part refers to it."""
        if not objects:
            return cls()
        stream, built = io.BytesIO(objects), list[Any]()
        received(stream)  # the arguments' class: see `arguments_class`
        model_init = received(stream)["model_init"]

        def model() -> Any:
            built[:] = built or [_made(model_init)]
            return built[0]

        parts = received(stream, model)
        return cls(model_init=model_init, built=built[0] if built else None, **parts)

    def model(self) -> Any:
        """The model that the parts refer to, else a new one of the caller's making."""
        return _made(self.model_init) if self.built is None else self.built

    def outline(self) -> Any:
        """The model, or one of its shapes alone where that is as good."""
        return self.model_init.on("meta") if isinstance(self.model_init, FromConfig) else self.model()

    def parts(self) -> dict[str, Any]:
        """The Trainer's other arguments."""
        parts = {
            "train_dataset": self.train_dataset,
            "data_collator": self.data_collator,
            "processing_class": self.processing_class,
        }
        # None among the further ones was given as such.
        return {name: value for name, value in parts.items() if value is not None} | dict(self.trainer_arguments)


def _made(model_init: Any) -> Any:
    """A `model_init` may take the (absent) trial, as the Trainer's may."""
    assert model_init is not None
    return model_init(None) if takes_trial(model_init) else model_init()


def arguments_class(objects: bytes) -> tuple[type, dict[str, Any]]:
    """(the caller's own class of arguments, fields that it must be given beside those of an order).

    Those are the ones that only this class has, and `TrainingArguments`' defaults where this class has others: an order
    leaves out what is at a default.
    """
    known: dict[str, Any] = received(io.BytesIO(objects)) if objects else {}
    kind: type = known.get("arguments_class") or TrainingArguments
    usual = {one.name: one.default for one in dataclasses.fields(TrainingArguments) if one.init}
    mine = {one.name: one.default for one in dataclasses.fields(kind) if one.init}
    other = {name: value for name, value in usual.items() if mine.get(name, value) not in (value, dataclasses.MISSING)}
    return kind, {**other, **known.get("own_fields", {})}


def user_workload(request: TuningRequest, objects: bytes) -> Workload:
    """What the caller's own model and dataset are; builds the model once. Raises InvalidRequest for no or little data."""
    user = UserObjects.opened(objects)
    model = user.outline()
    samples = len(user.train_dataset) if hasattr(user.train_dataset, "__len__") else 0
    if hasattr(user.train_dataset, "__len__") and samples < request.global_batch_size:
        raise InvalidRequest(
            f"The train_dataset has {samples} samples, fewer than one global batch of {request.global_batch_size}.",
            "Give more data, or a smaller global batch size.",
        )
    parameters = sum(one.numel() for one in model.parameters())
    config = getattr(model, "config", None)
    collating, pad_to_multiple_of = own_collating(user.data_collator, user.processing_class)
    return Workload(
        name=request.model,
        task=request.task or "custom",
        source=made_by(user.model_init),
        model_config=config.to_dict() if config is not None and hasattr(config, "to_dict") else {},
        architecture=type(model).__name__,
        sequence_length=request.sequence_length,
        parameters=parameters,
        parameter_bytes=sum(one.numel() * one.element_size() for one in model.parameters()),
        gradient_bytes=sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad),
        supports_checkpointing=getattr(model, "supports_gradient_checkpointing", None),
        checkpointing="" if (on := checkpointing.enabled_on(model)) == "none" else on,
        attention=str(getattr(config, "_attn_implementation", None) or "eager"),
        collating=collating,
        pad_to_multiple_of=pad_to_multiple_of,
        data_identity=getattr(user.train_dataset, "_fingerprint", None) or _identity_of(user, samples),
        text_source="the caller's own dataset",
        samples=samples,
        longest=_longest(user.train_dataset, samples),
        user_objects=True,
        own_optimizer=user.own_optimizer,
        whole_steps=user.whole_steps,
        weights_dtype=next((_dtype(one) for one in model.parameters() if one.is_floating_point()), "float32"),
        own_layers=layers_digest(model),
        own_parts=user.identity,
    )


def _dtype(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _identity_of(user: UserObjects, samples: int) -> str:
    """What tells the caller's parts from others: names, length and first samples.

    Their pickles will not do: a class of a script is pickled with a random number in it.
    """
    names = [getattr(one, "__qualname__", type(one).__qualname__) for one in (user.data_collator, user.trainer_class)]
    first = [repr(user.train_dataset[number]) for number in range(min(3, samples))]
    said = repr((type(user.train_dataset).__qualname__, samples, names, first))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _longest(dataset: Any, samples: int) -> tuple[int, ...]:
    """The place of the largest sample among those that can be looked at in a moment; empty where all are alike."""
    until = time.monotonic() + LOOK_S
    sizes: list[int] = []
    for place in range(samples):
        sizes.append(_size(dataset[place]))
        if time.monotonic() > until:
            break
    return (sizes.index(max(sizes)),) if sizes and min(sizes) != max(sizes) else ()


def _size(sample: Any) -> int:
    """Numbers in a sample: of its tensors and arrays, and the lengths of its lists and texts."""
    if isinstance(sample, torch.Tensor):
        return int(sample.numel())
    if isinstance(sample, Mapping):
        return sum(_size(value) for value in sample.values())
    size = getattr(sample, "size", None)  # numpy's arrays; an image's is its width and height
    if isinstance(size, int):
        return size
    return len(sample) if hasattr(sample, "__len__") else 1
