"""The side of the user's program: the search for its built Trainer, or the facts with which the parent searches."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autotune.commands.result import TuningResult
from autotune.commands.run import exchange
from autotune.commands.run.exchange import IN_PROCESS, RERUN, Facts, Instructions, SearchEnd
from autotune.commands.search import search
from autotune.commands.trainer.switch import prepare, restart_reason, switch, why_kept
from autotune.commands.tune import base_of, device_of, name_of_study, samples_of_step, sendable
from autotune.core.errors import (
    AutotuneError,
    InvalidRequest,
    InvalidSpace,
    ProbeHostFailed,
    SearchFailed,
    StudyMismatch,
)
from autotune.core.interrupt import Terminated, ending_on_signals, without_handlers
from autotune.core.note import Note
from autotune.core.random_state import kept_random_state
from autotune.core.request import tuning_request
from autotune.core.units import counted
from autotune.probe.train.callbacks import why_unfit
from autotune.probe.train.promise import PromiseCallback
from autotune.report.live.views import errors, watcher
from autotune.space.settings.threads import VARIABLE as THREADS
from autotune.space.user_arguments import plain_fields
from autotune.workload import extract
from autotune.workload.model.user_objects import sizes as sample_sizes
from autotune.workload.model.user_objects import trainer_workload

OF_THE_REQUEST = (StudyMismatch, InvalidSpace)
"""Refusals that another way of probing would meet too."""

VISIBLE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables by which the program's device is counted."""

DYNAMO = "ACCELERATE_DYNAMO_BACKEND"
"""Variable of `accelerate launch --dynamo_backend`, which probes do not get."""


def tune_here(
    trainer: Any,
    instructions: Instructions,
    messages: Path,
    made: list[Any],
    seen: Mapping[str, bool],
    is_trial: bool = False,
) -> None:
    """Search for the Trainer whose training was reached, or end; returns if the program trains on, with what it is to train with.

    made: the program's training arguments. seen: of the facts, `resumes` and `reads_flags`. is_trial: the training is one of
    `hyperparameter_search`, which sets its arguments once it has begun.
    """
    parent, made = instructions.parent, [*made]  # a search makes further ones
    if trainer.args.process_index:
        exchange.wait_for_end(parent)
    instructions = replace(instructions, options=_options_here(instructions))

    def tell(mode: str, why: str) -> None:
        _facts(trainer, instructions, mode, why, made, seen).write(messages)
        if mode == RERUN:
            exchange.wait_for_end(parent)
        if not instructions.quiet:
            print(f"autotune: {exchange.mode_line(mode, why)}", file=sys.stderr, flush=True)

    is_over = threading.Event()
    exchange.end_with(parent, is_over)
    end = SearchEnd(stop=not instructions.trains)
    try:
        if is_trial:
            raise InvalidRequest(
                "This training is a trial of hyperparameter_search, which sets the trial's arguments inside of train().",
                "Set per_device_train_batch_size outside of it, and tune a training of its own.",
            )
        with without_handlers(), ending_on_signals():
            result = _searched(trainer, instructions, tell)
        end = replace(end, study=os.path.abspath(result.folder))
        if instructions.trains:
            kept = why_kept(result, seen["resumes"])
            reason = "" if kept else restart_reason(result, trainer)
            end = replace(end, kept=kept, restart_reason=reason, stop=bool(reason))
            if not kept and not reason:
                also = switch(result, trainer, made)
                trainer.add_callback(PromiseCallback(result))
                print(f"autotune: {_set_on(1 + also, made)}", file=sys.stderr, flush=True)
    except AutotuneError as error:
        end = replace(end, error=type(error).__name__, message=error.message, advice=error.advice)
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


def _set_on(count: int, made: list[Any]) -> str:
    """The arguments on which the answer was set, for people: a program may train several times (folds)."""
    return (
        f"The answer is set on {count} of the {counted(len(made), 'object')} of training arguments that the program has made; "
        "those that it makes from now on keep their own."
    )


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
    why = "as requested" if instructions.mode else "all of it can be sent"
    if instructions.mode != RERUN:
        try:
            with kept_random_state(), sendable(trainer, instructions.options) as (payload, size, options):
                if not instructions.mode and (reason := _otherwise(payload.differs)):
                    raise InvalidRequest(f"{reason[:1].upper()}{reason[1:]}.")
                tell(IN_PROCESS, why)
                payload = replace(payload, trains_on=instructions.trains)
                with watcher(errors(), instructions.quiet, stays=False) as watch:
                    return search(payload, size, watch=watch, **options)
        except (InvalidRequest, ProbeHostFailed, SearchFailed) as error:
            if instructions.mode == IN_PROCESS or isinstance(error, OF_THE_REQUEST):
                raise
            why = error.message.partition("\n")[0].rstrip(".")
    extract.check_training(trainer)
    tell(RERUN, why)
    raise AssertionError("the program was not ended")


def _otherwise(differs: tuple[Note, ...]) -> str:
    """Reason why trials would train otherwise than the program if the Trainer were sent; else empty."""
    if os.environ.get(DYNAMO, "no").lower() not in ("", "no"):
        return f"the launcher compiles the model ({DYNAMO})"
    return differs[0].text if differs else ""


def _facts(
    trainer: Any, instructions: Instructions, mode: str, why: str, made: list[Any], seen: Mapping[str, bool]
) -> Facts:
    args = trainer.args
    base, unsent = base_of(args)
    size, device = samples_of_step(args, base, instructions.options), device_of(args)
    # Not the name of the search by sending, which may have begun: each mode answers a question of its own.
    requested = instructions.options.get("study_name")
    name = requested or name_of_study(type(trainer.model).__name__, size, device)
    suffix = f"-{RERUN}" if name and mode == RERUN and not (requested and instructions.mode) else ""
    callbacks = [callback for callback in extract.user_callbacks(trainer) if not why_unfit(callback)]
    names = dict.fromkeys(type(callback).__name__ for callback in callbacks)
    # As many threads by default as all ranks have together.
    variables = {THREADS: str(torch.get_num_threads() * args.world_size)}

    return Facts(
        mode=mode,
        why=why,
        trainer=type(trainer).__name__,
        call=instructions.call,
        workload=_workload(trainer, instructions.options, size, callbacks) if mode == RERUN else {},
        base=base,
        arguments=plain_fields(args),
        number=next((index for index, each in enumerate(made, 1) if each is args), 0),
        global_batch_size=size,
        ranks=args.world_size,
        device=device,
        variables=variables | {name: os.environ[name] for name in VISIBLE if name in os.environ},
        study_name=f"{name}{suffix}" if name else None,
        unsent=tuple(unsent),
        side_effects=(f"your callbacks run: {', '.join(names)}",) if names else (),
        prefix=sys.prefix,
        seconds=max(0.0, time.time() - instructions.started),
        **seen,
    )


def _workload(trainer: Any, options: Mapping[str, Any], size: int, callbacks: list[Any]) -> dict[str, Any]:
    chosen = {name: options[name] for name in ("task", "sequence_length") if options.get(name)}
    request = tuning_request(type(trainer.model).__name__, size, **chosen)
    sizes = sample_sizes(trainer.train_dataset, trainer.data_collator)
    workload = trainer_workload(request, trainer, True, extract.identity_of(trainer, callbacks), sizes)
    return workload.to_dict() | {"source": "the program"}
