"""Search for a user's own Trainer: one that is built, or the function that builds it."""

import copy
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Unpack, overload

from autotune.commands.result import TuningResult
from autotune.commands.search import search
from autotune.commands.trainer.offload import free_cache, held_memory, off_device
from autotune.core.configuration import RANKS
from autotune.core.errors import InvalidRequest
from autotune.core.note import Note, NoteKind
from autotune.core.random_state import kept_random_state
from autotune.core.request import TuneOptions, accepts, tuning_request
from autotune.core.warning import ResultWarning
from autotune.probe import Host
from autotune.probe.train.callbacks import why_unfit
from autotune.space.build import parse_overrides
from autotune.space.settings import precision
from autotune.space.setup import BATCH_FIELDS
from autotune.space.user_arguments import fields_of, left_out
from autotune.study.plan import Watch
from autotune.workload import extract
from autotune.workload.fresh import check_fresh, set_on_arguments
from autotune.workload.model.code import code_of, loaded_code
from autotune.workload.model.pickling import EVALUATION, Payload, can_be_sent, sent
from autotune.workload.model.sent_model import Prebuilt, called, without_weights
from autotune.workload.references import of_library

OF_EVALUATION = ("eval_dataset", "compute_metrics", "preprocess_logits_for_metrics")
"""Attributes of a Trainer that only the check of its evaluation gets: probes evaluate nothing."""

Sendable = tuple[Payload, int, dict[str, Any]]
"""Parts that probes build a Trainer from, samples of its steps, options of the search."""


@overload
def tune(
    trainer: Any,
    *,
    global_batch_size: int | None = None,
    watch: Watch | bool | None = None,
    probes: Callable[[bytes], AbstractContextManager[Host]] | None = None,
    **options: Unpack[TuneOptions],
) -> TuningResult: ...


@overload
def tune(
    build: Callable[[Any], Any],
    /,
    args: Any,
    *,
    global_batch_size: int | None = None,
    watch: Watch | bool | None = None,
    probes: Callable[[bytes], AbstractContextManager[Host]] | None = None,
    **options: Unpack[TuneOptions],
) -> TuningResult: ...


@kept_random_state()
@accepts(TuneOptions)
def tune(
    trainer: Any,
    args: Any = None,
    *,
    global_batch_size: int | None = None,
    watch: Watch | bool | None = None,
    probes: Callable[[bytes], AbstractContextManager[Host]] | None = None,
    **options: Unpack[TuneOptions],
) -> TuningResult:
    """Find the fastest configuration for your own `Trainer`, in one of two ways.

    `tune(trainer)` takes a built Trainer that a fresh one of its class and parts equals; `result.apply(trainer)` returns one
    that trains with the answer. What was set on it since it was built is refused. A plain transformers model is sent without
    its weights, and each probe draws random ones; any other is sent as it is. During the search the model is on the CPU, and
    afterwards where it was, however the search ends; the Trainer itself does not change.

    `tune(build, args)` takes any other Trainer: each probe calls `build` with its own arguments and trains what that returns.
    Train with `build(result.arguments(args)).train()`.

    In both ways your callbacks run in all probes, without trackers and those that need evaluations.

    Args:
        trainer: Of `transformers` or of a class of your own or TRL's. Its class, model, train_dataset, collator, processing
            class, loss function, callbacks, optimizer and arguments are what probes train with; the arguments are the
            baseline. Or `build`: a function that takes training arguments and returns a Trainer that has them.
        args: With `build`: the training arguments that are the baseline, of `TrainingArguments` or a subclass.
        global_batch_size: Samples of an optimizer step; by default what the arguments say, on as many ranks as `fix` names.
        watch: As in `autotune.search`.
        probes: As in `autotune.search`.
        **options: Each as a keyword; the study's name is by default made of the running script, the class of the model or the
            name of `build`, the batch size and the device.
        {options}

    Raises:
        InvalidRequest: The Trainer cannot be searched for (no data, several ranks, sharded, without weights, other than a fresh
            one, with parts that cannot be pickled), or an option is wrong.
        AutotuneError: As in `autotune.search`.
    """
    way = (
        sendable(trainer, options, global_batch_size)
        if args is None
        else nullcontext(_with_build(trainer, args, options, global_batch_size))
    )
    with way as (payload, size, more):
        return search(payload, size, watch=watch, probes=probes, **more)


@contextmanager
def sendable(trainer: Any, options: Mapping[str, Any], global_batch_size: int | None = None) -> Iterator[Sendable]:
    """Payload of this Trainer. Within, its model is on the CPU. Raises InvalidRequest as `tune` does."""
    if callable(trainer) and not hasattr(trainer, "train_dataset"):
        raise InvalidRequest(
            f"{called(trainer)} is no built Trainer.",
            "Pass the Trainer, or a function that builds it and its arguments: autotune.tune(build, args).",
        )
    extract.check(trainer)
    size, more, notes = _options(trainer.args, type(trainer.model).__name__, options, global_batch_size)
    models = extract.models(trainer)
    with off_device(models, extract.optimizer_of(trainer), more["device"]) as held:
        wrapped = precision.unwrap(models)
        try:
            payload = _payload(trainer, notes, held)
        finally:
            precision.wrap_again(wrapped)
        free_cache()  # of the Trainer with which this one was compared
        yield payload, size, more


def _with_build(build: Any, args: Any, options: Mapping[str, Any], global_batch_size: int | None) -> Sendable:
    """Payload of a function that builds a Trainer. Raises InvalidRequest as `tune` does."""
    if not callable(build) or not hasattr(args, "per_device_train_batch_size"):
        raise InvalidRequest(
            f"tune was given a {type(build).__name__} and a {type(args).__name__}.",
            "Pass a built Trainer alone, or a function that builds it and its training arguments: autotune.tune(build, args).",
        )
    extract.check_arguments(args)
    size, more, notes = _options(args, called(build), options, global_batch_size)
    own, on_arguments = extract.user_fields(args), set_on_arguments(args)
    objects = {
        "arguments_class": type(args),
        "user_fields": own,
        "on_arguments": on_arguments,
        "build": build,
        "code": loaded_code(),
        "whole_steps": extract.shares_accumulation(args),
        "identity": _identity({**own, **on_arguments, called(build): build}),
    }
    held = None if more["device"] == "cpu" else held_memory()
    warnings = (held,) if held else ()
    return (
        Payload(called(build), sent(objects), notes=tuple(notes), warnings=warnings, user_arguments=copy.copy(args)),
        size,
        more,
    )


def _options(
    args: Any, name: str, options: Mapping[str, Any], global_batch_size: int | None
) -> tuple[int, dict[str, Any], list[Note]]:
    """(samples of a step, options of the search, notes on arguments that are not sent). name: of the model or `build`."""
    base, unsent = base_of(args)
    device = options.get("device") or device_of(args)
    stated = samples_of_step(args, base, options)
    if global_batch_size not in (None, stated):
        # Another global batch than the user's: keep the micro-batch size if it divides it.
        del base["gradient_accumulation_steps"]
    size = global_batch_size or stated
    study = options.get("study_name") or name_of_study(name, size, device)
    return size, {**options, "args": base, "device": device, "study_name": study}, left_out(unsent)


def samples_of_step(args: Any, base: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """Samples of a step as the arguments say it, on the ranks that run or, in one process, that the option `fix` names."""
    ranks = args.world_size
    if ranks == 1 and (fixed := options.get("fix")):
        ranks = int(parse_overrides(tuning_request("model", 1, fix=fixed)).fixed.get(RANKS, 1))
    return int(base[BATCH_FIELDS[0]] * base[BATCH_FIELDS[1]] * ranks)


def base_of(args: Any) -> tuple[dict[str, Any], list[str]]:
    """(arguments as `fields_of` has them, with both sizes and the launcher's precision, the names of the rest)."""
    base, unsent = fields_of(args)
    launched = os.environ.get(precision.LAUNCHED, "")
    if launched in ("bf16", "fp16") and not (args.bf16 or args.fp16):
        base[launched] = True
    return base | {name: getattr(args, name) for name in BATCH_FIELDS}, unsent


def name_of_study(name: str, size: int, device: str) -> str | None:
    """Default name of a study: the running script, the name, the batch size and the device; None without a script."""
    script = _script()
    return f"{script}-{name}-gb{size}-{device.replace(':', '')}" if script else None


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
    user_callbacks = check_fresh(trainer)
    model_init, reason = without_weights(model, type(trainer))
    if model_init is None:
        notes.append(Note(NoteKind.SENT, detail=reason))
    else:
        notes.append(Note(NoteKind.WITHOUT_WEIGHTS))
    own, on_arguments = extract.user_fields(args), set_on_arguments(args)
    further = extract.further_arguments(trainer)
    optimizers = extract.user_optimizers(trainer)
    if optimizers[0] is not None and not further.get("optimizer_cls_and_kwargs"):
        further["optimizers"] = optimizers
    callbacks = _callbacks(trainer, user_callbacks, notes, differs)
    objects = {
        "arguments_class": type(args),
        "user_fields": own | extract.prepared_fields(args),
        "model_init": model_init or Prebuilt(model),
        "train_dataset": trainer.train_dataset,
        "data_collator": extract.collator_of(trainer),
        "processing_class": trainer.processing_class,
        "trainer_class": type(trainer),
        "trainer_arguments": further,
        "code": code_of({type(trainer)}, model.modules()),
        "on_arguments": on_arguments,
        "callbacks": [callback for callback in callbacks if id(callback) in {*map(id, user_callbacks)}],
        "own_optimizer": extract.optimizer_name(trainer),
        "whole_steps": extract.shares_accumulation(args),
        "identity": _identity({**own, **on_arguments}, further, extract.identity_of(trainer, callbacks)),
        EVALUATION: {name: value for name in OF_EVALUATION if (value := getattr(trainer, name, None)) is not None},
    }
    notes += [note for note in differs if note not in notes]
    warnings = (held,) if held else ()
    return Payload(
        type(model).__name__, sent(objects, trainer), tuple(notes), tuple(differs), warnings, copy.copy(args)
    )


def _callbacks(trainer: Any, own: list[Any], notes: list[Note], differs: list[Note]) -> list[Any]:
    """The user's callbacks that probes run, with notes on all of them. own: those that the Trainer's class does not make."""
    unfit, unsent, runs = list[str](), list[str](), list[Any]()
    for callback in extract.user_callbacks(trainer):
        name = type(callback).__name__
        if reason := why_unfit(callback):
            unfit.append(f"{name} ({reason})")
        elif any(callback is each for each in own) and (reason := can_be_sent(callback, trainer)):
            unsent.append(f"{name} ({reason})")
        else:
            runs.append(callback)
    if runs:
        notes.append(Note(NoteKind.CALLBACKS, detail=", ".join(type(callback).__name__ for callback in runs)))
    for excluded, place in ((unfit, notes), (unsent, differs)):
        if excluded:
            place.append(Note(NoteKind.CALLBACKS_LEFT_OUT, detail=", ".join(excluded)))
    return runs


def _identity(values: Mapping[str, Any], further: Mapping[str, Any] = {}, classes: str = "") -> str:
    """Names of the values' and further parts' classes, and a digest of plain values and of the code of functions.

    A digest because the fields of a user's class may be secrets or paths, and this is written into the study.
    """
    names = {name: extract.class_name(part) for name, part in {**further, **values}.items()}
    plain: dict[str, Any] = {
        name: value for name, value in values.items() if isinstance(value, (str, int, float, bool, dict, list))
    }
    codes = {name: getattr(part, "__code__", None) for name, part in values.items()}
    plain |= {f"{name}()": (code.co_code, code.co_names) for name, code in codes.items() if code is not None}
    digest = hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
    return repr((digest, names, classes))
