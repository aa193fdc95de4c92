"""Lever: one thing that can be set, and all there is to say about it in one place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autotune.configuration import Value
from autotune.environment import Environment
from autotune.workload import Workload


@dataclass(frozen=True)
class Settings:
    """What a lever's value sets.

    training_arguments, model_arguments: fields for Hugging Face. environment: variables of the training process.
    contradicts: fields that cannot stand beside this value, the user's own or of a lever that means nothing there.
    data_arguments: how samples become a batch: `pad_to_multiple_of` of the collator (None: no such padding), `packing`.
    adapter: fields of PEFT's `LoraConfig`; rank 0 means no adapter.
    A field whose value is a dict joins the user's own dict of that name, and those of other levers.
    """

    training_arguments: Mapping[str, Any] = field(default_factory=dict)
    model_arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    contradicts: tuple[str, ...] = ()
    data_arguments: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Observed:
    """What a running training shows of itself: the Trainer at `on_train_begin`, and its first micro-step.

    linear_dtype: what left the first linear (or convolution) layer, as `bfloat16`; autocast: whether it was on.
    tf32: whether matrix products of float32 run in TF32. threads: that compute one operation on the CPU.
    """

    trainer: Any
    linear_dtype: str
    autocast: bool
    tf32: bool
    threads: int = 1


class Work(NamedTuple):
    """How many times as long a micro-step's arithmetic takes, its kernels, and the optimizer's step."""

    arithmetic: float = 1.0
    kernels: float = 1.0
    update: float = 1.0


@dataclass(frozen=True)
class Lever:
    """One lever; every function is pure and knows no accelerator.

    name: as in configurations, spaces and tables. values: all that it knows, in the order to show them.
    changes: of "speed", "memory", "numerics". summary: one sentence for people.
    ordered: its values are numbers whose order means something to a sampler.
    work: what a value makes of a step's work, by what is known before any probe, on a device of these rates (precision ->
    operations / second of large matrix products, optimizer -> parameters / second).
    read: a value from text or YAML; raises ValueError. own: the value that the user's own arguments mean for this model.
    apply: what a value sets here. read_back: the value that a running training shows (None: cannot be seen).
    unavailable: why a value cannot be used here, or None where it can.
    needs: another lever, and at which of its values this one means anything (prefetching: with workers); None: always.
    hungrier: whether the first value needs at least as much memory as the second in every configuration.
    spares_gradients: whether a value does without float32 weights and gradients of the whole model on the device.
    """

    name: str
    values: tuple[Value, ...]
    changes: frozenset[str]
    summary: str
    read: Callable[[Any], Value]
    own: Callable[[Mapping[str, Any], Environment, Workload], Value]
    apply: Callable[[Value, Environment], Settings]
    read_back: Callable[[Observed], Value | None]
    unavailable: Callable[[Value, Environment, Workload], str | None] = lambda value, environment, workload: None
    hungrier: Callable[[Value, Value], bool] = lambda one, other: one == other
    ordered: bool = False
    needs: tuple[str, Callable[[Value], bool]] | None = None
    spares_gradients: Callable[[Value], bool] = lambda value: False
    work: Callable[[Value, Mapping[str, float]], Work] = lambda value, rates: Work()


def one_of(*words: str) -> Callable[[Any], str]:
    """Read a value that is one of these words; raises ValueError naming them."""

    def read(text: Any) -> str:
        word = str(text).strip().lower().replace("-", "_")
        if word not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return word

    return read


def whole_number(least: int) -> Callable[[Any], int]:
    """Read a whole number from `least`; raises ValueError."""

    def read(text: Any) -> int:
        try:
            number = int(str(text).strip())
        except ValueError:
            raise ValueError(f"{text!r} is no whole number") from None
        if number < least or isinstance(text, bool):
            raise ValueError(f"{text!r} is no whole number from {least}")
        return number

    return read


def yes_or_no(text: Any) -> bool:
    """Read true or false; raises ValueError."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    word = str(text).strip().lower()
    if word not in words:
        raise ValueError(f"{text!r} is neither true nor false")
    return words[word]


def from_probe_of_the_device(table: str) -> Callable[[Value, Environment, Workload], str | None]:
    """Unavailable as the environment's table of that name says (`precisions`, `optimizers`)."""

    def unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
        known: Mapping[str, str | None] = getattr(environment, table)
        return known.get(str(value), f"{value} was not tried on this device")

    return unavailable
