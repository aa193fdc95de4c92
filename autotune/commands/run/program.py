"""The side of the user's program: the search for its built Trainer, or the facts with which the parent searches."""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.commands.run.exchange import (
    AGAIN,
    ENDING,
    FACTS,
    SENT,
    TRAIN,
    Facts,
    Instructions,
    end_with,
    wait_for_end,
    way_line,
)
from autotune.commands.trainer.switch import padded, switch, why_anew, why_kept
from autotune.commands.tune import SIZES, base_of, device_of, identity_of, name_of_study, sendable
from autotune.core.errors import AutotuneError, InvalidRequest, InvalidSpace, SearchFailed, StudyMismatch
from autotune.core.interrupt import Terminated, ending_on_signals
from autotune.core.io import write_json
from autotune.core.note import Note
from autotune.core.random_state import kept_random_state
from autotune.core.request import tuning_request
from autotune.probe.train.callbacks import why_unfit
from autotune.space.settings import checkpointing
from autotune.space.settings.optimizer import ANY
from autotune.space.user_arguments import plain_fields
from autotune.workload import extract
from autotune.workload.model.rebuild import Prebuilt
from autotune.workload.model.user_objects import UserObjects, workload_of
from autotune.workload.model.user_objects import sizes as sample_sizes

OF_THE_REQUEST = (StudyMismatch, InvalidSpace)
"""Refusals that another way of probing would meet too."""

DYNAMO = "ACCELERATE_DYNAMO_BACKEND"
"""Variable of `accelerate launch --dynamo_backend`, which probes do not get."""


def tune_here(trainer: Any, instructions: Instructions, messages: Path, made: list[Any], resumes: bool) -> None:
    """Search for the Trainer whose training was reached, or end; returns if the program trains on, with what it is to train with.

    made: the program's training arguments. resumes: it continues a checkpoint.
    """
    parent = instructions.parent
    if trainer.args.process_index:
        wait_for_end(parent)

    def tell(by: str, why: str) -> None:
        facts = _facts(trainer, instructions, by, why, made)
        write_json(messages / FACTS, facts.to_dict())
        if by == AGAIN or instructions.dry_run:
            wait_for_end(parent)
        if not instructions.quiet:
            print(f"autotune: {way_line(by, why)}", file=sys.stderr, flush=True)

    is_over = threading.Event()
    end_with(parent, is_over)
    ending: dict[str, Any] = {}
    stop = not instructions.then
    try:
        with ending_on_signals():
            result = _searched(trainer, instructions, tell)
        ending = {"study": str(result.folder.absolute()) if result.folder else None}
        if instructions.then == TRAIN:
            kept = why_kept(result, resumes)
            anew = "" if kept else why_anew(result, trainer)
            ending |= {"kept": kept, "anew": anew}
            stop = bool(anew)
            if not kept and not anew:
                switch(result, trainer, made)
                _watch_promise(result, trainer)
    except AutotuneError as error:
        message, advice = error.written
        ending = {"error": type(error).__name__, "message": message, "advice": advice}
    except KeyboardInterrupt as error:
        ending, stop = {"interrupted": int(error.number) if isinstance(error, Terminated) else 2}, True
    except Exception as error:
        traceback.print_exc()
        ending = {"error": "AutotuneError", "message": f"{type(error).__name__}: {error}.", "advice": ""}
    is_over.set()
    write_json(messages / ENDING, ending | {"stop": stop})
    if stop:
        wait_for_end(parent)
    if text := ending.get("message") or ending.get("kept"):
        print(f"autotune: {text} Training goes on with the program's own settings.", file=sys.stderr, flush=True)


def prepare(trainer: Any, instructions: Instructions) -> None:
    """Set on a Trainer that was built with the answer's fields what these do not say."""
    if instructions.without_checkpointing:
        checkpointing.switch_off(trainer.model)
    padded(trainer.data_collator, instructions.padding)
    if instructions.study:
        from autotune.commands.result import TuningResult

        _watch_promise(TuningResult.load(instructions.study), trainer)


def _watch_promise(result: Any, trainer: Any) -> None:
    from autotune.probe.train.promise import PromiseCallback

    trainer.add_callback(PromiseCallback(result))


def _searched(trainer: Any, instructions: Instructions, tell: Callable[[str, str], None]) -> Any:
    """The result of a search for the Trainer as it is sent; ends the program if it cannot be sent."""
    from autotune.commands.search import search
    from autotune.report.live.views import errors, watcher

    why = "it was asked for" if instructions.by else "all of it can be sent"
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


def _facts(trainer: Any, instructions: Instructions, by: str, why: str, made: list[Any]) -> Facts:
    args = trainer.args
    base, unsent = base_of(trainer)
    size, device = base[SIZES[0]] * base[SIZES[1]] * args.world_size, device_of(args)
    name = name_of_study(trainer, size, device)
    callbacks = [callback for callback in extract.own_callbacks(trainer) if not why_unfit(callback)]
    needs_workload = by == AGAIN or instructions.dry_run
    measures = sample_sizes(trainer.train_dataset) if needs_workload else []
    return Facts(
        by=by,
        why=why,
        trainer=type(trainer).__name__,
        call=instructions.call,
        workload=_workload(trainer, instructions.options, size, callbacks) if needs_workload else {},
        base=base,
        arguments=plain_fields(args) | {name: base[name] for name in ("bf16", "fp16") if name in base},
        number=next((place for place, each in enumerate(made, 1) if each is args), 0),
        global_batch_size=size,
        ranks=args.world_size,
        device=device,
        threads=_threads(),
        study_name=f"{name}-{AGAIN}" if name and by == AGAIN else name,
        lengths=f"{min(measures)} to {max(measures)} numbers" if measures else "of unknown length",
        unsent=tuple(unsent),
        beside=_beside(callbacks),
        prefix=sys.prefix,
    )


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _workload(trainer: Any, options: Mapping[str, Any], size: int, callbacks: list[Any]) -> dict[str, Any]:
    own, _ = extract.own_optimizers(trainer)
    user = UserObjects(
        model_init=Prebuilt(trainer.model),
        train_dataset=trainer.train_dataset,
        data_collator=trainer.data_collator,
        processing_class=trainer.processing_class,
        trainer_class=type(trainer),
        own_optimizer=type(own).__name__ if own else ANY if extract.makes_optimizer(type(trainer)) else "",
        whole_steps=True,
        identity=identity_of(trainer, callbacks),
    )
    chosen = {name: options[name] for name in ("task", "sequence_length") if options.get(name)}
    request = tuning_request(type(trainer.model).__name__, size, **chosen)
    return workload_of(request, user, trainer.model).to_dict() | {"source": "the program"}


def _beside(callbacks: list[Any]) -> tuple[str, ...]:
    """Parts of each start, beside the training, that cannot be turned off, for people."""
    names = dict.fromkeys(type(callback).__name__ for callback in callbacks)
    parts = [f"your callbacks run: {', '.join(names)}"] if names else []
    files = [path for path in _written_files() if not path.startswith(("/dev/", "/proc/"))]
    return (*parts, *(f"{path} is opened for writing" for path in files))


def _written_files() -> list[str]:
    """Files that this process has open for writing, without its standard streams."""
    paths: dict[str, None] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            path = os.readlink(entry)
            flags = Path(f"/proc/self/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0]
        except (OSError, IndexError):
            continue  # closed meanwhile
        is_written = int(flags, 8) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
        if int(entry.name) > 2 and is_written and path.startswith("/") and os.path.isfile(path):
            paths[path] = None
    return list(paths)
