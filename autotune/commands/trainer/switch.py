"""A search's answer set on a built Trainer in place, before its first training, as if it had been built with it."""

import os
from collections.abc import Iterable
from typing import Any

from autotune.commands.trainer.apply import (
    answer_arguments,
    changed_fields,
    prepare_data,
    prepare_model,
    prepared_init,
    set_process,
)
from autotune.report.evidence import loss_warning
from autotune.space.launch import launch_line
from autotune.space.settings import precision
from autotune.space.settings.threads import VARIABLE as THREADS
from autotune.space.setup import BATCH_FIELDS
from autotune.study.result import SearchResult
from autotune.workload import extract

PRECISIONS = ("bf16", "fp16")

OF_ACCELERATOR = {"accelerator", "prepare_model", "prepare_deepspeed", "prepare_fsdp", "prepare"}
"""Names in a constructor that uses the accelerator: what it makes keeps that one's precision."""


OF_THE_CHECKPOINT = {
    "micro_batch_size": "micro-batch size",
    "optimizer": "optimizer",
    "fsdp": "FSDP",
    "zero": "ZeRO stage",
}
"""Setting -> its name, for people: a checkpoint's place in the data and the state of its optimizer belong to its value."""


def why_kept(result: SearchResult, resumes: bool = False) -> str:
    """Reason, a sentence, why a training goes on with its own settings; empty if it takes the answer's.

    Settings that do not fit the memory need not be slower. resumes: it continues a checkpoint.
    """
    speedup = result.speedup
    is_faster = speedup is not None and speedup.low > 1
    if not result.changes_settings or not (is_faster or result.baseline.lacked_memory):
        return "Nothing is shown to be faster."
    if warning := loss_warning(result):
        return f"{warning.text[:1].upper()}{warning.text[1:].rstrip('.')}."
    own, best = result.baseline.configuration.values, result.best.configuration.values
    names = [name for setting, name in OF_THE_CHECKPOINT.items() if own.get(setting) != best.get(setting)]
    return f"The training continues a checkpoint, and the answer changes the {names[0]}." if resumes and names else ""


def restart_reason(result: SearchResult, trainer: Any) -> str:
    """Reason why the answer takes a new start of the program; empty if it can be set on this Trainer."""
    setup, ranks = result.setup, trainer.args.world_size
    variables = {name: value for name, value in setup.variables.items() if name != THREADS}
    missing = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    if missing or setup.processes != ranks:
        return f"the answer starts so: {launch_line(setup.processes, missing)}"
    changed = changed_fields(result, trainer.args).keys()
    read = {*changed} | (OF_ACCELERATOR if {*changed} & {*PRECISIONS} else set())
    read |= {"train_batch_size"} if BATCH_FIELDS[0] in changed else set()
    for kind in type(trainer).__mro__:
        code = getattr(vars(kind).get("__init__"), "__code__", None)
        if not kind.__module__.startswith("transformers.") and code and (names := read & {*code.co_names}):
            return f"the __init__ of {kind.__name__} reads {min(names)}"
    return ""


def switch(result: SearchResult, trainer: Any, made: Iterable[Any]) -> int:
    """Set the answer on the Trainer, its arguments, accelerator, collator and model, and on this process.

    made: further training arguments of the program; those that say what the Trainer's say follow them. Returns how many did.
    """
    args = trainer.args
    changed = changed_fields(result, args)
    if "optim" in changed and extract.user_optimizers(trainer)[0] is None:
        trainer.optimizer = None  # of an earlier training
    precision.leave_launcher()
    before = {name: getattr(args, name) for name in changed}
    values = vars(answer_arguments(result, args, {}))
    others = [other for other in made if other is not args]
    alike = [other for other in others if all(getattr(other, name, None) == value for name, value in before.items())]
    for other in alike:
        vars(other).update({name: values[name] for name in changed})
    vars(args).update(values)
    precision.unwrap(extract.models(trainer))
    prepare(result, trainer)
    trainer.create_accelerator_and_postprocess()
    trainer._train_batch_size = args.train_batch_size
    return len(alike)


def prepare(result: SearchResult, trainer: Any) -> None:
    """Set on the Trainer's models and collator and on this process what the answer's training arguments do not say."""
    prepare_model(result, trainer.model)
    trainer.model_init = prepared_init(result, trainer.model_init)
    prepare_data(result, trainer)
    set_process(result, trainer.args.world_size)
