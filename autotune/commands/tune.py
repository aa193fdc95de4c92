"""Search for a user's own built Trainer: probes train with that Trainer's class, model, data and callbacks."""

import copy
import hashlib
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from autotune.commands.result import TuningResult
from autotune.commands.search import search
from autotune.commands.trainer.offload import free_cache, off_device
from autotune.core.note import Note, NoteKind
from autotune.core.random_state import kept_random_state
from autotune.core.request import TuneOptions, accepts
from autotune.core.warning import ResultWarning
from autotune.probe import Host
from autotune.probe.train.callbacks import is_tracker
from autotune.space.settings import precision
from autotune.space.settings.optimizer import ANY
from autotune.space.user_arguments import fields_of, left_out
from autotune.study.plan import Watch
from autotune.workload import extract
from autotune.workload.model.code import code_of
from autotune.workload.model.pickling import Payload, can_be_sent, sent
from autotune.workload.model.rebuild import Prebuilt, rebuilt
from autotune.workload.rebinding import function_of, of_library
from autotune.workload.twin import SetLater, set_later

NEEDS_EVALUATION = ("EarlyStoppingCallback",)
"""Callbacks, and their subclasses, that refuse a training without evaluation, as probes are, and cost nothing in a step."""

OF_EVALUATION = ("eval_dataset", "compute_metrics", "preprocess_logits_for_metrics")
"""Attributes of a Trainer that probes, which evaluate nothing, do not get."""

SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")


@kept_random_state()
@accepts(TuneOptions)
def tune(
    trainer: Any,
    *,
    global_batch_size: int | None = None,
    watch: Watch | bool | None = None,
    probes: Callable[[bytes], AbstractContextManager[Host]] | None = None,
    **options: Unpack[TuneOptions],
) -> TuningResult:
    """Find the fastest configuration for a built `Trainer`; `result.apply(trainer)` returns one that trains with it.

    A plain transformers model is rebuilt in each probe from its class and config, with random weights; any other is sent
    as it is. Your own optimizer is rebuilt over the probe's parameters and used in all trials. Your own callbacks run in
    all probes, without trackers and those that need evaluations; a note of the result names them. During the search the
    model is on the CPU, and afterwards where it was, however the search ends; the Trainer itself does not change.

    Args:
        trainer: Of `transformers` or of a class of your own or TRL's. Its class, model, train_dataset, collator, processing
            class, loss function, callbacks, optimizer and arguments are what probes train with; the arguments are the
            baseline.
        global_batch_size: Samples of an optimizer step; by default what the arguments say.
        watch: As in `autotune.search`.
        probes: As in `autotune.search`.
        **options: Each as a keyword; the study's name is by default made of the running script, the model's class, the batch
            size and the device.
        {options}

    Raises:
        InvalidRequest: The Trainer cannot be searched for (no data, several ranks, sharded, without weights, with parts that
            cannot be pickled), or an option is wrong.
        AutotuneError: As in `autotune.search`.
    """
    extract.check(trainer)
    args = trainer.args
    stated = args.per_device_train_batch_size * args.gradient_accumulation_steps
    base, unsent = fields_of(args)
    base |= {name: getattr(args, name) for name in SIZES}
    if global_batch_size not in (None, stated):
        # Another global batch than the user's: keep the micro-batch size if it divides it.
        del base["gradient_accumulation_steps"]
    notes = left_out(unsent)
    device = options.pop("device", None) or _device(args)
    size = global_batch_size or stated
    if options.get("study_name") is None and (script := _script()):
        options["study_name"] = f"{script}-{type(trainer.model).__name__}-gb{size}-{device.replace(':', '')}"
    with off_device(trainer.model, extract.optimizer_of(trainer), device) as held:
        wrapped = precision.unwrap(trainer.model)
        try:
            payload = _payload(trainer, notes, held)
        finally:
            precision.wrap_again(wrapped)
        free_cache()  # of the Trainer with which this one was compared
        more: Any = {**options, "args": base, "device": device}
        return search(payload, size, watch=watch, probes=probes, **more)


def _script() -> str:
    """Name of the script that runs, as a part of a folder's name; empty in a notebook and a shell."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return (
        ""
        if file is None or of_library("__main__")
        else re.sub(r"[^A-Za-z0-9_]+", "-", Path(file).stem)[:40].strip("-")
    )


def _device(args: Any) -> str:
    return "cpu" if args.device.type == "cpu" else f"cuda:{args.device.index or 0}"


def _payload(trainer: Any, notes: list[Note], held: ResultWarning | None) -> Payload:
    """Data from which a child builds this Trainer again. held: warning of memory that this process holds on the device."""
    args, model = trainer.args, trainer.model
    model_init, reason = rebuilt(model, type(trainer))
    if model_init is None:
        notes.append(Note(NoteKind.SENT, detail=reason))
    else:
        notes.append(Note(NoteKind.REBUILT))
    later = set_later(trainer)
    set_names = sorted({*later.attributes, *(f"args.{name}" for name in later.of_arguments)})
    if set_names:
        notes.append(Note(NoteKind.SET_LATER, detail=", ".join(set_names)))
    own = extract.own_fields(args)
    further, lost = extract.further_arguments(trainer)
    if lost:
        notes.append(Note(NoteKind.NOT_KEPT, detail=", ".join(lost)))
    further |= _optimizers(trainer, further, notes)
    callbacks = _callbacks(trainer, notes)
    objects = {
        "arguments_class": type(args),
        "own_fields": own,
        "model_init": model_init or Prebuilt(model),
        "train_dataset": trainer.train_dataset,
        "data_collator": extract.collator_of(trainer),
        "processing_class": trainer.processing_class,
        "trainer_class": type(trainer),
        "trainer_arguments": further,
        "code": code_of(type(trainer), model),
        "set_later": replace(
            later, attributes={name: value for name, value in later.attributes.items() if name not in OF_EVALUATION}
        ),
        "callbacks": callbacks,
        "own_optimizer": _own_optimizer(trainer, further),
        "prepared": True,
        "whole_steps": extract.shares_accumulation(args),
        "identity": _identity(trainer, own, further, later, callbacks),
    }
    return Payload(type(model).__name__, sent(objects, trainer), tuple(notes), (held,) if held else (), copy.copy(args))


def _optimizers(trainer: Any, further: dict[str, Any], notes: list[Note]) -> dict[str, Any]:
    """`optimizers` for the probe's Trainer: the user's own, if they can be rebuilt."""
    optimizer, scheduler = extract.own_optimizers(trainer)
    if optimizer is None or further.get("optimizer_cls_and_kwargs"):
        return {}
    if reason := can_be_sent(optimizer, trainer):
        notes.append(Note(NoteKind.OPTIMIZER, detail=f"{type(optimizer).__name__}: {reason}"))
        return {}
    if scheduler is not None and (reason := can_be_sent((optimizer, scheduler), trainer)):
        notes.append(Note(NoteKind.SCHEDULE, detail=f"{type(scheduler).__name__}: {reason}"))
        scheduler = None
    return {"optimizers": (optimizer, scheduler)}


def _own_optimizer(trainer: Any, further: dict[str, Any]) -> str:
    """See `Workload.own_optimizer`."""
    if further.get("optimizers"):
        return type(further["optimizers"][0]).__name__
    if further.get("optimizer_cls_and_kwargs"):
        return str(further["optimizer_cls_and_kwargs"][0].__name__)
    return ANY if extract.makes_optimizer(type(trainer)) else ""


def _callbacks(trainer: Any, notes: list[Note]) -> list[Any]:
    """The user's callbacks that probes run, with notes on all of them."""
    callbacks = extract.own_callbacks(trainer)
    reasons = [_unfit(callback) or can_be_sent(callback, trainer) for callback in callbacks]
    runs = [callback for callback, reason in zip(callbacks, reasons, strict=True) if not reason]
    excluded = [
        f"{type(callback).__name__} ({reason})" for callback, reason in zip(callbacks, reasons, strict=True) if reason
    ]
    if runs:
        notes.append(Note(NoteKind.CALLBACKS, detail=", ".join(type(callback).__name__ for callback in runs)))
    if excluded:
        notes.append(Note(NoteKind.CALLBACKS_LEFT_OUT, detail=", ".join(excluded)))
    return runs


def _unfit(callback: Any) -> str:
    """Reason why probes do not run it; else empty."""
    if any(kind.__name__ in NEEDS_EVALUATION for kind in type(callback).__mro__):
        return "it needs evaluations"
    if is_tracker(callback):
        return "it would log every probe as a run"
    functions = (function_of(member) for kind in type(callback).__mro__ for member in vars(kind).values())
    names = {name for function in functions if (code := getattr(function, "__code__", None)) for name in code.co_names}
    return "it evaluates" if names & {"evaluate", "predict"} else ""


def _identity(trainer: Any, own: dict[str, Any], further: dict[str, Any], later: SetLater, callbacks: list[Any]) -> str:
    """Names of the Trainer's classes and functions, and a digest of plain fields and of the code of functions set later.

    A digest because the fields of a user's class may be secrets or paths, and this is written into the study.
    """
    set_later = {**later.attributes, **later.of_arguments}
    names = {name: _name(part) for name, part in {**further, **set_later}.items()}
    values = {**own, **set_later}
    plain: dict[str, Any] = {
        name: value for name, value in values.items() if isinstance(value, (str, int, float, bool, dict, list))
    }
    codes = {name: getattr(part, "__code__", None) for name, part in set_later.items()}
    plain |= {f"{name}()": (code.co_code, code.co_names) for name, code in codes.items() if code is not None}
    classes = [_name(part) for part in (type(trainer), type(trainer.args), trainer.data_collator)]
    digest = hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
    return repr((classes, digest, names, [_name(callback) for callback in callbacks]))


def _name(part: Any) -> str:
    if isinstance(part, (tuple, list)):
        return ", ".join(map(_name, part))
    return str(getattr(part, "__qualname__", type(part).__qualname__))
