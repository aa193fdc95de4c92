"""The side of the user's program: the search for its built Trainer, or the facts with which the parent searches."""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autotune.commands.result import TuningResult
from autotune.commands.run import exchange
from autotune.commands.run.exchange import AGAIN, SENT, TRAIN, Facts, Instructions, SearchEnd
from autotune.commands.search import search
from autotune.commands.trainer.switch import prepare, switch, why_anew, why_kept
from autotune.commands.tune import base_of, device_of, identity_of, name_of_study, samples_of_step, sendable
from autotune.core.errors import AutotuneError, InvalidRequest, InvalidSpace, SearchFailed, StudyMismatch
from autotune.core.interrupt import Terminated, ending_on_signals, without_handlers
from autotune.core.io import read_json, write_json
from autotune.core.note import Note
from autotune.core.random_state import kept_random_state
from autotune.core.request import tuning_request
from autotune.probe.process.guard import guard
from autotune.probe.train.callbacks import why_unfit
from autotune.probe.train.promise import PromiseCallback
from autotune.report.live.views import errors, watcher
from autotune.space.settings.optimizer import ANY
from autotune.space.settings.threads import VARIABLE as THREADS
from autotune.space.user_arguments import plain_fields
from autotune.workload import extract
from autotune.workload.model.rebuild import Prebuilt
from autotune.workload.model.user_objects import UserObjects, workload_of
from autotune.workload.model.user_objects import sizes as sample_sizes

OF_THE_REQUEST = (StudyMismatch, InvalidSpace)
"""Refusals that another way of probing would meet too."""

ASIDE_S, LOOK_S = 60.0, 0.02
"""Seconds that reading the user's data in a fork may take, and between looks for its end."""

VISIBLE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables by which the program's device is counted."""

DYNAMO = "ACCELERATE_DYNAMO_BACKEND"
"""Variable of `accelerate launch --dynamo_backend`, which probes do not get."""


def tune_here(
    trainer: Any, instructions: Instructions, messages: Path, made: list[Any], seen: Mapping[str, bool]
) -> None:
    """Search for the Trainer whose training was reached, or end; returns if the program trains on, with what it is to train with.

    made: the program's training arguments. seen: of the facts, `resumes` and `reads_flags`.
    """
    parent = instructions.parent
    if trainer.args.process_index:
        exchange.wait_for_end(parent)
    if instructions.quiet and not instructions.then:  # its output is hidden
        exchange.show_errors(parent)
    instructions = replace(instructions, options=_options_here(instructions))

    def tell(by: str, why: str) -> None:
        _facts(trainer, instructions, by, why, made, seen).write(messages)
        if by == AGAIN or instructions.dry_run:
            exchange.wait_for_end(parent)
        if not instructions.quiet:
            print(f"autotune: {exchange.way_line(by, why)}", file=sys.stderr, flush=True)

    is_over = threading.Event()
    exchange.end_with(parent, is_over)
    end = SearchEnd(stop=not instructions.then)
    try:
        with without_handlers(), ending_on_signals():
            result = _searched(trainer, instructions, tell)
        end = replace(end, study=os.path.abspath(result.folder))
        if instructions.then == TRAIN:
            kept = why_kept(result, seen["resumes"])
            anew = "" if kept else why_anew(result, trainer)
            end = replace(end, kept=kept, anew=anew, stop=bool(anew))
            if not kept and not anew:
                switch(result, trainer, made)
                trainer.add_callback(PromiseCallback(result))
    except AutotuneError as error:
        end = replace(end, error=type(error).__name__, message=error.written[0], advice=error.written[1])
    except KeyboardInterrupt as error:
        end = replace(end, interrupted=int(error.number) if isinstance(error, Terminated) else 2, stop=True)
    except Exception as error:
        traceback.print_exc()
        end = replace(end, error="AutotuneError", message=f"{type(error).__name__}: {error}.")
    is_over.set()
    end.write(messages)
    if end.stop:
        exchange.wait_for_end(parent)
    if text := end.message or end.kept:
        print(f"autotune: {text} Training goes on with the program's own settings.", file=sys.stderr, flush=True)


def train_with_answer(trainer: Any, instructions: Instructions) -> None:
    """Prepare a Trainer that was built with the answer's fields."""
    result = TuningResult.load(instructions.study)
    prepare(result, trainer)
    trainer.add_callback(PromiseCallback(result))


def _options_here(instructions: Instructions) -> Mapping[str, Any]:
    """The options of the search, with their paths as they are named in the program's folder."""
    options, folder = instructions.options, instructions.folder
    if os.getcwd() == folder:
        return options
    paths = {name: os.path.relpath(os.path.join(folder, options[name])) for name in ("output_dir", "space")}
    return {**options, **{name: path for name, path in paths.items() if name == "output_dir" or os.path.isfile(path)}}


def _searched(trainer: Any, instructions: Instructions, tell: Callable[[str, str], None]) -> Any:
    """The result of a search for the Trainer as it is sent; ends the program if it cannot be sent."""
    why = "as requested" if instructions.by else "all of it can be sent"
    if instructions.by != AGAIN:
        try:
            with kept_random_state(), sendable(trainer, instructions.options) as (payload, size, options):
                if not instructions.by and (reason := _otherwise(payload.differs)):
                    raise InvalidRequest(f"{reason[:1].upper()}{reason[1:]}.")
                tell(SENT, why)
                with watcher(errors(), instructions.quiet, stays=False) as watch:
                    return search(payload, size, watch=watch, **options)
        except (InvalidRequest, SearchFailed) as error:
            if instructions.by == SENT or isinstance(error, OF_THE_REQUEST):
                raise
            why = error.written[0].rstrip(".")
    extract.check_training(trainer)
    tell(AGAIN, why)
    raise AssertionError("the program was not ended")


def _otherwise(differs: tuple[Note, ...]) -> str:
    """Reason why trials would train otherwise than the program if the Trainer were sent; else empty."""
    if os.environ.get(DYNAMO, "no").lower() not in ("", "no"):
        return f"the launcher compiles the model ({DYNAMO})"
    return differs[0].text if differs else ""


def _facts(
    trainer: Any, instructions: Instructions, by: str, why: str, made: list[Any], seen: Mapping[str, bool]
) -> Facts:
    args = trainer.args
    base, unsent = base_of(trainer)
    size, device = samples_of_step(trainer, base, instructions.options), device_of(args)
    name = name_of_study(trainer, size, device)
    callbacks = [callback for callback in extract.own_callbacks(trainer) if not why_unfit(callback)]
    # As many threads by default as all ranks have together.
    variables = {THREADS: str(torch.get_num_threads() * args.world_size)}

    def read() -> tuple[dict[str, Any], list[int]]:
        return _workload(trainer, instructions.options, size, callbacks), sample_sizes(trainer.train_dataset)

    workload, measures = read_aside(read) if by == AGAIN or instructions.dry_run else ({}, [])
    return Facts(
        by=by,
        why=why,
        trainer=type(trainer).__name__,
        call=instructions.call,
        workload=workload,
        base=base,
        arguments=plain_fields(args),
        number=next((place for place, each in enumerate(made, 1) if each is args), 0),
        global_batch_size=size,
        ranks=args.world_size,
        device=device,
        variables=variables | {name: os.environ[name] for name in VISIBLE if name in os.environ},
        study_name=f"{name}-{AGAIN}" if name and by == AGAIN else name,
        lengths=f"{min(measures)} to {max(measures)} numbers" if measures else "of unknown length",
        unsent=tuple(unsent),
        beside=_beside(callbacks),
        prefix=sys.prefix,
        seconds=max(0.0, time.time() - instructions.started),
        **seen,
    )


def read_aside(read: Callable[[], Any]) -> Any:
    """The result, plain data, in a fork of this process that writes nothing of the user's; in this process if the fork fails."""
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(action="ignore"),
    ):  # of other threads
        place = Path(folder, "read.json")
        if not (process := os.fork()):
            with contextlib.suppress(BaseException):
                torch.set_num_threads(1)
                guard(Path(folder, "layers"), [folder])
                write_json(place, read())
            os._exit(0)
        until = time.monotonic() + ASIDE_S
        while not os.waitpid(process, os.WNOHANG)[0]:
            time.sleep(LOOK_S)
            if time.monotonic() > until:
                os.kill(process, signal.SIGKILL)
        return read_json(place) if place.exists() else read()


def _workload(trainer: Any, options: Mapping[str, Any], size: int, callbacks: list[Any]) -> dict[str, Any]:
    own, _ = extract.own_optimizers(trainer)
    kind = type(own) if own else (getattr(trainer, "optimizer_cls_and_kwargs", None) or (None,))[0]
    user = UserObjects(
        model_init=Prebuilt(trainer.model),
        train_dataset=trainer.train_dataset,
        data_collator=trainer.data_collator,
        processing_class=trainer.processing_class,
        trainer_class=type(trainer),
        own_optimizer=kind.__name__ if kind else ANY if extract.makes_optimizer(type(trainer)) else "",
        whole_steps=True,
        identity=identity_of(trainer, callbacks),
    )
    chosen = {name: options[name] for name in ("task", "sequence_length") if options.get(name)}
    request = tuning_request(type(trainer.model).__name__, size, **chosen)
    return workload_of(request, user, trainer.model).to_dict() | {"source": "the program"}


def _beside(callbacks: list[Any]) -> tuple[str, ...]:
    """Parts of each start, beside the training, that cannot be turned off, for people."""
    names = dict.fromkeys(type(callback).__name__ for callback in callbacks)
    return (f"your callbacks run: {', '.join(names)}",) if names else ()
