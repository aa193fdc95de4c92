"""The answer put into the user's arguments, and into a Trainer: a new one that shares the model and runs as it was measured."""

import contextlib
import copy
import dataclasses
import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.core.environment import Environment
from autotune.core.errors import InvalidRequest
from autotune.probe.train.callbacks import take_callbacks
from autotune.space.collators import WithoutFullMask
from autotune.space.launch import launch_line
from autotune.space.settings import checkpointing, precision
from autotune.space.settings.attention_mask import FIELD as MASK
from autotune.space.settings.compile import REGIONAL
from autotune.space.settings.optimizer import OWN, user_optimizer
from autotune.space.settings.threads import VARIABLE as THREADS
from autotune.space.setup import FINDER, PRIVATE, training_setup, what_differs
from autotune.space.user_arguments import fields_of
from autotune.study.result import SearchResult
from autotune.workload import extract

ALIASES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Older name of a field -> the newer one, where `TrainingArguments` has both: what the older says would win."""


class NotApplied(UserWarning):
    """A part of the answer that a built Trainer or a running process cannot take: do it as the message says."""


class BatchSizeChanged(UserWarning):
    """The Trainer's own arguments state another global batch size than the search was asked for."""


def applied(found: SearchResult, trainer: Any) -> Any:
    """A new Trainer of the same class that trains as the answer says; see `TuningResult.apply`."""
    _refuse(found)
    args = answer_arguments(found, trainer.args, extract.prepared_fields(trainer.args))
    _say_batch(found, trainer.args)
    further, lost = extract.further_arguments(trainer)
    if lost:
        _warn(f"{type(trainer).__name__} does not keep {', '.join(lost)}: the new one has the defaults")
    optimizers = extract.own_optimizers(trainer)
    _say_optimizer(found, optimizers[0])
    model_init = _prepared_init(found, getattr(trainer, "model_init", None))
    everything = {
        "model": None if model_init else trainer.model,
        "model_init": model_init,
        "args": args,
        "train_dataset": trainer.train_dataset,
        "eval_dataset": trainer.eval_dataset,
        "data_collator": _collator(found, trainer),
        "processing_class": trainer.processing_class,
        "compute_metrics": trainer.compute_metrics,
        "preprocess_logits_for_metrics": trainer.preprocess_logits_for_metrics,
        "optimizers": optimizers if optimizers[0] is not None else None,
    }
    takes = extract.accepted(type(trainer))
    if model_init is None:
        _prepare_model(found, trainer.model)
    parts = {name: one for name, one in everything.items() if one is not None and name in takes}
    with _compiled_as_asked(found):
        made = extract.built_again(type(trainer), {**parts, **further})  # None among the further ones was given as such
    for name in extract.prepared_fields(trainer.args):
        setattr(made.args, name, getattr(trainer.args, name))
    _pad(found, made.data_collator)
    if found.setup.data_arguments.get(MASK):
        made.data_collator = WithoutFullMask(made.data_collator)
    take_callbacks(made, trainer)
    _train_as_answered(found, made)
    _say_evaluation(found, made)
    _set_process(found, trainer.args.world_size)
    return made


def _refuse(found: SearchResult) -> None:
    """Raise InvalidRequest for answers that a built model cannot take."""
    if adapter := found.setup.adapter:
        raise InvalidRequest(
            "The answer trains an adapter, which a built Trainer has no place for.",
            f"Build it with get_peft_model(model, LoraConfig(**{adapter})) and result.training_arguments().",
        )
    if four_bits := found.setup.model_arguments.get("quantization_config"):
        raise InvalidRequest(
            "The answer has weights of four bits, which a built model cannot become.",
            f"Load it with from_pretrained(..., quantization_config=BitsAndBytesConfig(**{four_bits})).",
        )
    if found.setup.data_arguments.get("packing"):
        raise InvalidRequest(
            "The answer packs samples, which needs another collator than the Trainer's.",
            "Build the Trainer with data_collator=DataCollatorWithFlattening().",
        )


def answer_arguments(found: SearchResult, user: Any, overrides: Mapping[str, Any]) -> Any:
    """The user's own arguments, of their own class, with the answer's fields, then these; a copy.

    user: a `TrainingArguments`; or, where none is at hand, fields that are private to the user's run, or None: then plain
    `TrainingArguments` of what the search knows. Raises as `TuningResult.training_arguments` does.
    """
    from transformers import TrainingArguments

    kind = TrainingArguments if user is None or isinstance(user, Mapping) else type(user)
    names = {one.name for one in dataclasses.fields(kind)}
    newer = {old: new for old, new in ALIASES.items() if new in names}
    overrides = {newer.get(name, name): value for name, value in overrides.items()}
    forget_tf32()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of fields that the user has set, and has heard of
        if kind is not TrainingArguments or isinstance(user, kind):
            return dataclasses.replace(user, **{**_changed(found, user), **overrides})
        private = {name: value for name, value in (user or {}).items() if name in names}
        fields = {"output_dir": "output", **private, **found.setup.training_arguments}
        return kind(**{**fields, **overrides})


def _changed(found: SearchResult, args: Any) -> dict[str, Any]:
    """The fields in which the answer differs from these arguments."""
    base = what_differs(fields_of(args)[0], found.environment)
    best = found.best.configuration
    fields = training_setup(best, found.environment, base).training_arguments
    names = {one.name: one for one in dataclasses.fields(args) if one.init}
    changed = {name: value for name, value in fields.items() if name in names and _differs(getattr(args, name), value)}
    gone = [name for name in base if name not in fields and name not in (*PRIVATE, *ALIASES)]
    changed |= {name: _default(found.environment, name) for name in gone}
    changed |= {old: None for old, new in ALIASES.items() if old in names and new in names}
    if getattr(args, FINDER, False):
        changed[FINDER] = False
    return {name: copy.deepcopy(value) for name, value in changed.items()} | extract.computed_fields(args)


def forget_tf32() -> None:
    """Have the next `TrainingArguments` of this process set TF32 as they say.

    transformers remembers having switched it either way, and does not do so again after the other was switched to.
    """
    from transformers.utils import import_utils

    getattr(getattr(import_utils, "enable_tf32", None), "cache_clear", lambda: None)()


def _differs(one: Any, other: Any) -> bool:
    return bool(getattr(one, "value", one) != getattr(other, "value", other))


def _default(environment: Environment, name: str) -> Any:
    defaults: Mapping[str, Any] = environment.training_argument_defaults
    return defaults.get(name, False if name == FINDER else None)


def _collator(found: SearchResult, trainer: Any) -> Any:
    """A copy where the answer pads otherwise: the user's own is not changed."""
    own = extract.collator_of(trainer)
    return copy.copy(own) if "pad_to_multiple_of" in found.setup.data_arguments else own


def _pad(found: SearchResult, collator: Any) -> None:
    asked = found.setup.data_arguments
    if "pad_to_multiple_of" in asked:
        if hasattr(collator, "pad_to_multiple_of"):
            collator.pad_to_multiple_of = asked["pad_to_multiple_of"]
        elif asked["pad_to_multiple_of"]:
            _warn(f"your collator has no pad_to_multiple_of; the answer pads to {asked['pad_to_multiple_of']}")


def _say_batch(found: SearchResult, args: Any) -> None:
    """Say it where the Trainer's arguments state another global batch, and the search was not asked to leave just those."""
    own = (args.per_device_train_batch_size, args.gradient_accumulation_steps)
    ranks = args.world_size * max(1, args.n_gpu)
    stated, answer = own[0] * own[1] * ranks, found.best.configuration.global_batch_size
    if stated != answer and own[0] * own[1] != _searched_from(found):
        on_ranks = f" x {ranks} ranks" if ranks > 1 else ""
        _warn(
            f"the Trainer's own arguments say {own[0]} x {own[1]}{on_ranks} = {stated} samples a step, the new one trains "
            f"{answer}, as the search was asked: search with a global batch size of {stated} to keep yours",
            BatchSizeChanged,
        )


def _searched_from(found: SearchResult) -> int | None:
    """Samples a step and rank that the arguments given to the search state; None where they state none."""
    user = found.user_arguments
    base = found.request.training_args if user is None or isinstance(user, Mapping) else vars(user)
    micro, accumulation = base.get("per_device_train_batch_size"), base.get("gradient_accumulation_steps")
    return None if micro is None and accumulation is None else int(micro or 8) * int(accumulation or 1)


def _say_evaluation(found: SearchResult, made: Any) -> None:
    """Say it where the size of the evaluation's batch is one that was checked and did not fit: it stays the user's."""
    size, checked = made.args.per_device_eval_batch_size, found.rehearsal
    fits = checked and checked.eval_batch_size
    if checked and fits and fits < size and size in checked.eval_batches_tried and made.eval_dataset is not None:
        _warn(f"an evaluation batch of {size} ran out of memory, {fits} fits: set per_device_eval_batch_size={fits}")


def _say_optimizer(found: SearchResult, own: Any) -> None:
    """Say it where an optimizer of the user's own stays, though the answer was measured with another one."""
    usual = OWN if found.workload.own_optimizer else user_optimizer(found.request.training_args)
    chosen = found.best.configuration.values.get("optimizer", usual)
    if own is not None and chosen != OWN:
        _warn(
            f"your {type(own).__name__} stays, but the answer was measured with {chosen}: build the Trainer without it"
        )


def _without_checkpointing(found: SearchResult) -> bool:
    return found.best.configuration.values.get(checkpointing.SETTING.name) == "none"


def _train_as_answered(found: SearchResult, trainer: Any) -> None:
    """Begin each training with the answer's precision and checkpointing: another Trainer may have trained the shared model."""
    train = trainer.train

    @functools.wraps(train)
    def prepared(*args: Any, **kwargs: Any) -> Any:
        precision.unwrap(trainer.model)
        if _without_checkpointing(found):
            checkpointing.switch_off(trainer.model)
        return train(*args, **kwargs)

    trainer.train = prepared


def _prepared_init(found: SearchResult, model_init: Any) -> Any:
    """A `model_init` that makes the same models, each with what the answer sets on a built one; None for None."""
    if model_init is None:
        return None

    @functools.wraps(model_init)
    def prepared(*args: Any) -> Any:
        model = model_init(*args)
        _prepare_model(found, model)
        return model

    return prepared


def _prepare_model(found: SearchResult, model: Any) -> None:
    """Set on the model what can be set on a built one, and say the rest; attention and weights of `tune`'s are as measured."""
    if _without_checkpointing(found):
        checkpointing.switch_off(model)
    if found.workload.user_objects:
        return
    asked = found.setup.model_arguments
    for name, setter in (
        ("attn_implementation", "set_attn_implementation"),
        ("experts_implementation", "set_experts_implementation"),
    ):
        if name in asked and asked[name] != getattr(getattr(model, "config", None), f"_{name}", None):
            try:
                getattr(model, setter)(asked[name])
            except (AttributeError, ValueError, ImportError) as error:
                _warn(f"{name} {asked[name]} is not set ({error}): from_pretrained(..., {name}={asked[name]!r})")
    dtype = next((str(one.dtype).removeprefix("torch.") for one in model.parameters() if one.is_floating_point()), "")
    if dtype and asked.get("dtype", dtype) != dtype:
        _warn(f"the model's weights are {dtype}: from_pretrained(..., dtype={asked['dtype']!r})")


@contextlib.contextmanager
def _compiled_as_asked(found: SearchResult) -> Iterator[None]:
    """A Trainer takes up how much is compiled at once when it is built, from a variable alone."""
    own, asked = os.environ.pop(REGIONAL, None), found.setup.variables.get(REGIONAL)
    if asked is not None:
        os.environ[REGIONAL] = asked
    try:
        yield
    finally:
        os.environ.pop(REGIONAL, None)
        if own is not None:
            os.environ[REGIONAL] = own


def _set_process(found: SearchResult, ranks: int) -> None:
    """Set in this process what can still be set, and say what it has to be started with."""
    import torch

    for name, allowed in found.setup.switches.items():
        getattr(torch.backends.cuda, name)(allowed)
    variables = found.setup.variables
    variables.pop(REGIONAL, None)
    if threads := variables.pop(THREADS, None):
        torch.set_num_threads(int(threads))
    missing = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    if missing or found.setup.processes != ranks:
        _warn(f"the answer was measured in a process that starts so: {launch_line(found.setup.processes, missing)}")


def _warn(said: str, category: type[UserWarning] = NotApplied) -> None:
    warnings.warn(f"{said[:1].upper()}{said[1:]}.", category, stacklevel=4)
