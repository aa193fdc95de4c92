"""Search for a user's own built Trainer: probes train with that Trainer's class, model, data and callbacks."""

import copy
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from autotune.commands.result import TuningResult
from autotune.commands.search import search
from autotune.commands.trainer.offload import free_cache, off_device
from autotune.core.configuration import RANKS
from autotune.core.note import Note, NoteKind
from autotune.core.random_state import kept_random_state
from autotune.core.request import TuneOptions, accepts, tuning_request
from autotune.core.warning import ResultWarning
from autotune.probe import Host
from autotune.probe.train.callbacks import why_unfit
from autotune.space.build import parse_overrides
from autotune.space.settings import precision
from autotune.space.settings.optimizer import ANY
from autotune.space.setup import BATCH_FIELDS
from autotune.space.user_arguments import fields_of, left_out
from autotune.study.plan import Watch
from autotune.workload import extract
from autotune.workload.model.code import code_of
from autotune.workload.model.pickling import EVALUATION, Payload, can_be_sent, sent
from autotune.workload.model.rebuild import Prebuilt, rebuilt
from autotune.workload.rebinding import of_library
from autotune.workload.twin import SetLater, set_later

OF_EVALUATION = ("eval_dataset", "compute_metrics", "preprocess_logits_for_metrics")
"""Attributes of a Trainer that only the check of its evaluation gets: probes evaluate nothing."""


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
        global_batch_size: Samples of an optimizer step; by default what the arguments say, on as many ranks as `fix` names.
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
    with sendable(trainer, options, global_batch_size) as (payload, size, more):
        return search(payload, size, watch=watch, probes=probes, **more)


@contextmanager
def sendable(
    trainer: Any, options: Mapping[str, Any], global_batch_size: int | None = None
) -> Iterator[tuple[Payload, int, dict[str, Any]]]:
    """(what probes build this Trainer from, samples of its steps, options of the search). Within, its model is on the CPU.

    Raises InvalidRequest as `tune` does.
    """
    extract.check(trainer)
    base, unsent = base_of(trainer)
    device = options.get("device") or device_of(trainer.args)
    stated = samples_of_step(trainer, base, options)
    if global_batch_size not in (None, stated):
        # Another global batch than the user's: keep the micro-batch size if it divides it.
        del base["gradient_accumulation_steps"]
    notes = left_out(unsent)
    size = global_batch_size or stated
    name = options.get("study_name") or name_of_study(trainer, size, device)
    models = extract.models(trainer)
    with off_device(models, extract.optimizer_of(trainer), device) as held:
        wrapped = precision.unwrap(models)
        try:
            payload = _payload(trainer, notes, held)
        finally:
            precision.wrap_again(wrapped)
        free_cache()  # of the Trainer with which this one was compared
        yield payload, size, {**options, "args": base, "device": device, "study_name": name}


def samples_of_step(trainer: Any, base: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """Samples of a step as the arguments say it, on the ranks that run or, in one process, that the option `fix` names."""
    ranks = trainer.args.world_size
    if ranks == 1 and (fixed := options.get("fix")):
        ranks = int(parse_overrides(tuning_request(type(trainer).__name__, 1, fix=fixed)).fixed.get(RANKS, 1))
    return int(base[BATCH_FIELDS[0]] * base[BATCH_FIELDS[1]] * ranks)


def base_of(trainer: Any) -> tuple[dict[str, Any], list[str]]:
    """(the Trainer's arguments as `fields_of` has them, with both sizes and the launcher's precision, the names of the rest)."""
    args = trainer.args
    base, unsent = fields_of(args)
    launched = os.environ.get(precision.LAUNCHED, "")
    if launched in ("bf16", "fp16") and not (args.bf16 or args.fp16):
        base[launched] = True
    return base | {name: getattr(args, name) for name in BATCH_FIELDS}, unsent


def name_of_study(trainer: Any, size: int, device: str) -> str | None:
    """By default of the running script, the model's class, the batch size and the device; None without a script."""
    script = _script()
    return f"{script}-{type(trainer.model).__name__}-gb{size}-{device.replace(':', '')}" if script else None


def _script() -> str:
    """Name of the script that runs, as a part of a folder's name; empty in a notebook and a shell."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or of_library("__main__"):
        return ""
    path = Path(file).absolute()
    name = path.parent.name if path.name == "__main__.py" else path.stem
    return re.sub(r"[^A-Za-z0-9_]+", "-", name)[:40].strip("-")


def device_of(args: Any) -> str:
    """The device of these arguments, as an option names it."""
    return "cpu" if args.device.type == "cpu" else f"cuda:{args.device.index or 0}"


def _payload(trainer: Any, notes: list[Note], held: ResultWarning | None) -> Payload:
    """Data from which a child builds this Trainer again. held: warning of memory that this process holds on the device."""
    args, model, differs = trainer.args, trainer.model, [*notes]
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
        differs.append(Note(NoteKind.NOT_KEPT, detail=", ".join(lost)))
    further |= _optimizers(trainer, further, differs)
    callbacks = _callbacks(trainer, notes, differs)
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
        EVALUATION: {name: value for name in OF_EVALUATION if (value := getattr(trainer, name, None)) is not None},
    }
    notes += [note for note in differs if note not in notes]
    warnings = (held,) if held else ()
    return Payload(
        type(model).__name__, sent(objects, trainer), tuple(notes), tuple(differs), warnings, copy.copy(args)
    )


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


def _callbacks(trainer: Any, notes: list[Note], differs: list[Note]) -> list[Any]:
    """The user's callbacks that probes run, with notes on all of them."""
    unfit, unsent, runs = list[str](), list[str](), list[Any]()
    for callback in extract.own_callbacks(trainer):
        name = type(callback).__name__
        if reason := why_unfit(callback):
            unfit.append(f"{name} ({reason})")
        elif reason := can_be_sent(callback, trainer):
            unsent.append(f"{name} ({reason})")
        else:
            runs.append(callback)
    if runs:
        notes.append(Note(NoteKind.CALLBACKS, detail=", ".join(type(callback).__name__ for callback in runs)))
    for excluded, place in ((unfit, notes), (unsent, differs)):
        if excluded:
            place.append(Note(NoteKind.CALLBACKS_LEFT_OUT, detail=", ".join(excluded)))
    return runs


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
    digest = hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
    return repr((digest, names, identity_of(trainer, callbacks)))


def identity_of(trainer: Any, callbacks: list[Any]) -> str:
    """Names of the classes of the Trainer, its arguments, collator and these callbacks."""
    parts = (type(trainer), type(trainer.args), trainer.data_collator, *callbacks)
    return repr([_name(part) for part in parts])


def _name(part: Any) -> str:
    if isinstance(part, (tuple, list)):
        return ", ".join(map(_name, part))
    return str(getattr(part, "__qualname__", type(part).__qualname__))
