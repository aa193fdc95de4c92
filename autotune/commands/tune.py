"""tune: a search for the user's own built Trainer, in which what is measured is what that Trainer does."""

import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autotune.commands.result import TuningResult
from autotune.commands.search import search
from autotune.commands.trainer.offload import off_device
from autotune.core.random_state import kept_random_state
from autotune.core.request import CONFIRMATION_ROUNDS, OPTIONS
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.train.callbacks import is_tracker
from autotune.space.settings import precision
from autotune.space.settings.optimizer import ANY
from autotune.space.user_arguments import fields_of, left_out
from autotune.study.plan import Watch
from autotune.workload import extract
from autotune.workload.model.pickling import Payload, can_be_sent, sent
from autotune.workload.model.rebuild import Prebuilt, rebuilt

NEEDS_EVALUATION = ("EarlyStoppingCallback",)
"""Callbacks that refuse a training without evaluation, as probes are, and cost nothing in a step; and what inherits them."""

THE_TRAINER_S = ("dataset", "dataset_split", "text_column", "label_column", "tokenizer")
"""Options of a search that mean nothing here: a Trainer brings its data."""

SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")


@kept_random_state()
def tune(
    trainer: Any,
    *,
    global_batch_size: int | None = None,
    task: str | None = None,
    sequence_length: int | None = None,
    space: str | os.PathLike[str] = "default",
    fix: Mapping[str, Any] | Iterable[str] | None = None,
    only: Mapping[str, Any] | Iterable[str] | None = None,
    device: str | None = None,
    memory_limit: str | int | None = None,
    headroom: str | float = 0.05,
    n_trials: int = 20,
    timeout: str | float | None = None,
    probe_timeout: str | float | None = None,
    confirmation_rounds: int = CONFIRMATION_ROUNDS,
    sampler: str = "physics",
    margin: str | float = 0.01,
    training_steps: int | None = None,
    no_history: bool = False,
    keep_numerics: bool = False,
    objective: str = "samples_per_second",
    seed: int = 0,
    require_parity: bool = False,
    allow_loss_difference: bool = False,
    trust_remote_code: bool = False,
    output_dir: str | os.PathLike[str] = "reports",
    report_to: str | Iterable[str] | None = None,
    study_name: str | None = None,
    fresh: bool = False,
    watch: Watch | bool | None = None,
    probes: Callable[[bytes], ProbeHost] | None = None,
) -> TuningResult:
    """Find the fastest configuration for a built `Trainer`; `result.apply(trainer)` hands back one that runs with it.

    trainer: of `transformers` or of a class of your own or TRL's. Its class, model, train_dataset, collator, processing
    class, loss function, callbacks, optimizer and arguments are what probes train with; the arguments are the baseline.
    global_batch_size: samples of an optimizer step; by default what the arguments say. device: by default the Trainer's.
    watch: called with a Progress for everything that happens; by default, or by True, it is shown: in place in a notebook or
    a terminal, else as a line an event on standard error; False: nothing is. All else is as in `autotune.search`.

    A plain transformers model is rebuilt in each probe from its class and config, with random weights; any other is sent
    as it is. An optimizer of your own is rebuilt over the probe's parameters and kept in every trial. Callbacks of your
    own run in every probe, but for trackers and what needs evaluations; which do not, a note of the result says. While it
    searches, the model lies on the CPU, and it is back where it was afterwards, however the search ends; the Trainer
    itself is left as it is.

    Raises InvalidRequest, one line with advice, for a Trainer that cannot be searched for (no data, several ranks, sharded,
    without weights, with parts that no other process can get), and all that `search` raises.
    """
    given = locals()
    options = {name: given[name] for name in OPTIONS if name not in THE_TRAINER_S}
    extract.check(trainer)
    args = trainer.args
    stated = args.per_device_train_batch_size * args.gradient_accumulation_steps
    base, unsent = fields_of(args)
    base |= {name: getattr(args, name) for name in SIZES}
    if global_batch_size not in (None, stated):
        # Another batch than the user's: the micro-batch size is kept, made exact.
        del base["gradient_accumulation_steps"]
    notes = [left_out(unsent)] if unsent else []
    options["device"] = device or _device(args)
    with off_device(trainer.model, extract.optimizer_of(trainer), options["device"]) as held:
        wrapped = precision.unwrap(trainer.model)
        try:
            brought = _brought(trainer, notes, held)
        finally:
            precision.wrap_again(wrapped)
        return search(
            brought, global_batch_size or stated, args=base, fresh=fresh, watch=watch, probes=probes, **options
        )


def _device(args: Any) -> str:
    return "cpu" if args.device.type == "cpu" else f"cuda:{args.device.index or 0}"


def _brought(trainer: Any, notes: list[str], held: str) -> Payload:
    """Everything that a child needs to build this Trainer again. held: what this process keeps on the device, for people."""
    args, model = trainer.args, trainer.model
    made, reason = rebuilt(model, type(trainer))
    if made is None:
        notes.append(f"the model is sent to probes as it is: {reason}")
    else:
        notes.append("random weights: each probe builds the model from its class and config")
    notes += [held] if held else []
    own = extract.own_fields(args)
    further, lost = extract.further_arguments(trainer)
    if lost:
        notes.append(f"{type(trainer).__name__} does not keep {', '.join(lost)}: probes take the defaults")
    further |= _optimizers(trainer, further, notes)
    callbacks = _callbacks(trainer, notes)
    objects = {
        "arguments_class": type(args),
        "own_fields": own,
        "model_init": made or Prebuilt(model),
        "train_dataset": trainer.train_dataset,
        "data_collator": extract.collator_of(trainer),
        "processing_class": trainer.processing_class,
        "trainer_class": type(trainer),
        "trainer_arguments": further,
        "callbacks": callbacks,
        "own_optimizer": _own_optimizer(trainer, further),
        "prepared": True,
        "whole_steps": extract.shares_accumulation(args),
        "identity": _identity(trainer, own, further, callbacks),
    }
    return Payload(type(model).__name__, sent(objects, trainer), tuple(notes), (held,) if held else (), copy.copy(args))


def _optimizers(trainer: Any, further: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """`optimizers` for the probe's Trainer, where the user brought any that can be rebuilt."""
    optimizer, scheduler = extract.own_optimizers(trainer)
    if optimizer is None or further.get("optimizer_cls_and_kwargs"):
        return {}
    if reason := can_be_sent(optimizer, trainer):
        notes.append(f"probes take {trainer.args.optim} instead of your {type(optimizer).__name__}: {reason}")
        return {}
    if scheduler is not None and (reason := can_be_sent((optimizer, scheduler), trainer)):
        notes.append(f"probes take the arguments' schedule instead of your {type(scheduler).__name__}: {reason}")
        scheduler = None
    return {"optimizers": (optimizer, scheduler)}


def _own_optimizer(trainer: Any, further: dict[str, Any]) -> str:
    """See `Workload.own_optimizer`."""
    if further.get("optimizers"):
        return type(further["optimizers"][0]).__name__
    if further.get("optimizer_cls_and_kwargs"):
        return str(further["optimizer_cls_and_kwargs"][0].__name__)
    return ANY if extract.makes_optimizer(type(trainer)) else ""


def _callbacks(trainer: Any, notes: list[str]) -> list[Any]:
    """The user's callbacks that probes run, with notes on all of them."""
    runs, left = [], []
    for one in extract.own_callbacks(trainer):
        name = type(one).__name__
        reason = _unfit(one) or can_be_sent(one, trainer)
        runs += [] if reason else [one]
        left += [f"{name} ({reason})"] if reason else []
    if runs:
        notes.append(f"your callbacks run in every probe: {', '.join(type(one).__name__ for one in runs)}")
    if left:
        notes.append(f"callbacks left out of probes: {', '.join(left)}")
    return runs


def _unfit(callback: Any) -> str:
    """Why no probe runs it; empty where one may."""
    if any(kind.__name__ in NEEDS_EVALUATION for kind in type(callback).__mro__):
        return "it needs evaluations"
    return "it would log every probe as a run" if is_tracker(callback) else ""


def _identity(trainer: Any, own: dict[str, Any], further: dict[str, Any], callbacks: list[Any]) -> str:
    """What tells this Trainer from others, as far as words can: names of classes and functions, and a digest of plain fields.

    The values of a class of one's own may be secrets or places, and this is written into the study.
    """
    named = {name: _name(one) for name, one in further.items()}
    plain = {name: value for name, value in own.items() if isinstance(value, (str, int, float, bool, dict, list))}
    kinds = [_name(one) for one in (type(trainer), type(trainer.args), trainer.data_collator)]
    digest = hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
    return repr((kinds, digest, named, [_name(one) for one in callbacks]))


def _name(one: Any) -> str:
    if isinstance(one, (tuple, list)):
        return ", ".join(_name(part) for part in one)
    return str(getattr(one, "__qualname__", type(one).__qualname__))
