"""A search's answer in the user's arguments, and in a new Trainer that shares the model and trains as measured."""

import contextlib
import copy
import dataclasses
import functools
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autotune.core.errors import BatchSizeChanged, InvalidRequest, NotApplied
from autotune.probe.train.callbacks import take_callbacks
from autotune.space.launch import launch_line
from autotune.space.settings import checkpointing, precision
from autotune.space.settings.checkpointing import ALIASES
from autotune.space.settings.compile import REGIONAL
from autotune.space.settings.optimizer import OWN, user_optimizer
from autotune.space.settings.threads import VARIABLE as THREADS
from autotune.space.setup import BATCH_FIELDS, FINDER, PRIVATE, training_setup, what_differs
from autotune.space.user_arguments import OF_THE_DEVICE, fields_of
from autotune.study.result import SearchResult
from autotune.workload import extract
from autotune.workload.fresh import BY_AUTOTUNE, check_fresh, set_on_arguments

OTHER_NAMES = {**ALIASES, **{new: old for old, new in ALIASES.items()}}
"""Name of a field -> its name in other versions of transformers."""


PADDING = "pad_to_multiple_of"


def applied(result: SearchResult, trainer: Any) -> Any:
    """A new Trainer of the same class that trains as the answer says; see `TuningResult.apply`."""
    _refuse(result)
    extract.check_constructors(trainer)
    check_fresh(trainer)
    args = answer_arguments(result, trainer.args, extract.prepared_fields(trainer.args))
    _warn_of_batch_size(result, trainer.args)
    optimizers = extract.own_optimizers(trainer)
    _warn_of_optimizer(result, optimizers[0])
    model_init = prepared_init(result, getattr(trainer, "model_init", None))
    parts = {**extract.parts(trainer), "args": args}
    if PADDING in result.setup.data_arguments and "data_collator" in parts:
        parts["data_collator"] = copy.copy(parts["data_collator"])  # the user's is not changed
    parts |= {"optimizers": optimizers} if optimizers[0] is not None else {}
    if model_init is None:
        prepare_model(result, trainer.model)
    precision.unwrap(extract.models(trainer))
    with regional_compilation(result):
        model = {"model_init": model_init} if model_init else {"model": trainer.model}
        new = extract.built_again(type(trainer), parts | model)
    for name in extract.prepared_fields(trainer.args):
        setattr(new.args, name, getattr(trainer.args, name))
    prepare_data(result, new)
    take_callbacks(new, trainer)
    _prepare_at_start(result, new)
    _warn_of_evaluation(result, new)
    set_process(result, trainer.args.world_size)
    return new


def arguments_for_build(result: SearchResult, args: Any) -> Any:
    """The arguments with which a function builds a Trainer that trains as the answer says; see `TuningResult.arguments`."""
    _refuse(result)
    _warn_of_batch_size(result, args)
    made = answer_arguments(result, args, {})
    if not result.workload.built and (others := {**result.setup.data_arguments, **result.setup.model_arguments}):
        _warn(f"no field of training arguments says {', '.join(others)}: set that where model and collator are made")
    precision.leave_launcher()
    os.environ.pop(REGIONAL, None)
    if (value := result.setup.variables.get(REGIONAL)) is not None:
        os.environ[REGIONAL] = value
    set_process(result, args.world_size)
    return made


def _refuse(result: SearchResult) -> None:
    """Raise InvalidRequest for answers that a built model cannot take."""
    if adapter := result.setup.adapter:
        raise InvalidRequest(
            "The answer trains an adapter, which a built Trainer has no place for.",
            f"Build it with get_peft_model(model, LoraConfig(**{adapter})) and result.training_arguments().",
        )
    if four_bits := result.setup.model_arguments.get("quantization_config"):
        raise InvalidRequest(
            "The answer has weights of four bits, which a built model cannot become.",
            f"Load it with from_pretrained(..., quantization_config=BitsAndBytesConfig(**{four_bits})).",
        )
    if result.setup.data_arguments.get("packing"):
        raise InvalidRequest(
            "The answer packs samples, which needs another collator than the Trainer's.",
            "Build the Trainer with data_collator=DataCollatorWithFlattening().",
        )


def answer_arguments(result: SearchResult, user: Any, overrides: Mapping[str, Any]) -> Any:
    """A copy of the user's arguments, of their own class, with the answer's fields, then the overrides.

    user: a `TrainingArguments`; or private fields of the user's run, or None: then plain `TrainingArguments` of the search's
    fields. Raises as `TuningResult.training_arguments` does.
    """
    from transformers import TrainingArguments

    kind = TrainingArguments if user is None or isinstance(user, Mapping) else type(user)
    names = {field.name for field in dataclasses.fields(kind)}
    newer = {old: new for old, new in ALIASES.items() if new in names}
    overrides = _named({newer.get(name, name): value for name, value in overrides.items()}, names)
    if user is None or isinstance(user, Mapping):
        private = {name: value for name, value in (user or {}).items() if name in names}
        fields = {"output_dir": "output", **private, **_named(result.setup.training_arguments, names)}
        made = extract.arguments(kind, {**fields, **overrides})
        set_tf32(made.tf32)
        return made
    computed = extract.computed_fields(user)
    stated = {field.name: getattr(user, field.name) for field in dataclasses.fields(user) if field.init}
    changed = {**changed_fields(result, user), **overrides}
    made = extract.arguments(kind, {**{name: stated[name] for name in stated if name not in computed}, **changed})
    again = extract.constructed_again(user, computed)
    for name in stated.keys() - computed.keys() - changed.keys():
        if getattr(again, name) != stated[name]:  # set since they were built, to what their class would not leave
            setattr(made, name, stated[name])
    vars(made).update(set_on_arguments(user))
    set_tf32(made.tf32)
    return made


def _named(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The fields as this transformers names them: the study may be from another version."""
    return {name if name in names else OTHER_NAMES.get(name, name): value for name, value in fields.items()}


def changed_fields(result: SearchResult, args: Any) -> dict[str, Any]:
    """The fields in which the answer differs from these arguments.

    If it is the user's own settings, nothing but their exact sizes.
    """
    environment = result.environment
    base = what_differs(fields_of(args)[0], environment)
    names = {field.name for field in dataclasses.fields(args) if field.init}
    fields = _named(training_setup(result.best.configuration, environment, base).training_arguments, names)
    started, baseline = what_differs(result.request.training_args, environment), result.baseline_trial
    kept: Mapping[str, Any] = {}  # what the baseline has too, in fields that are as they were then
    if baseline is not None:
        of_baseline = _named(training_setup(baseline.configuration, environment, base).training_arguments, names)
        kept = {name: value for name, value in of_baseline.items() if base.get(name) == started.get(name)}
    changed = {
        name: value
        for name, value in fields.items()
        if name in names
        and (
            name in BATCH_FIELDS
            or (result.changes_settings and (name in OF_THE_DEVICE or name not in kept or kept[name] != value))
        )
        and getattr(value, "value", value) != getattr(getattr(args, name), "value", getattr(args, name))
    }
    defaults = environment.training_argument_defaults
    if result.changes_settings:
        gone = [name for name in base if name not in fields and name not in (*PRIVATE, *ALIASES, FINDER)]
        changed |= {name: defaults.get(name) for name in gone}
        changed |= {FINDER: False} if getattr(args, FINDER, False) else {}
    changed |= {old: None for old, new in ALIASES.items() if old in names and new in changed}
    return {name: copy.deepcopy(value) for name, value in changed.items()}


def set_tf32(tf32: bool | None) -> None:
    """Let float32 products of this process run in TF32 or not, as in a process that has set nothing; None leaves it as it is.

    `TrainingArguments` set that too, but transformers does it only once for each value, and if the process has named a
    precision of matrix products itself (`torch.set_float32_matmul_precision`), that one counts in torch.
    """
    import torch
    from transformers.utils import import_utils

    if tf32 is not None:
        import_utils.enable_tf32.cache_clear()
        import_utils.enable_tf32(tf32)
        backends = torch.backends
        if getattr(backends.cuda.matmul, "fp32_precision", "") != getattr(backends, "fp32_precision", ""):
            torch.set_float32_matmul_precision("high" if tf32 else "highest")


# Warnings ---------------------------------------------------------------------------------------------------------


def _warn_of_batch_size(result: SearchResult, args: Any) -> None:
    """Of another global batch than the search's, unless the search started from just these arguments."""
    micro, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    ranks = args.world_size * max(1, args.n_gpu)
    size, answer = micro * accumulation * ranks, result.best.configuration.global_batch_size
    if size != answer and micro * accumulation != _searched_from(result):
        on_ranks = f" x {ranks} ranks" if ranks > 1 else ""
        _warn(
            f"the Trainer's own arguments say {micro} x {accumulation}{on_ranks} = {size} samples a step, the new one trains "
            f"{answer}, as the search requested: search with a global batch size of {size} to keep yours",
            BatchSizeChanged,
        )


def _searched_from(result: SearchResult) -> int | None:
    """Samples per step and rank of the arguments that the search was given; None if they have no batch size."""
    user = result.user_arguments
    base = result.request.training_args if user is None or isinstance(user, Mapping) else vars(user)
    micro, accumulation = base.get("per_device_train_batch_size"), base.get("gradient_accumulation_steps")
    return None if micro is None and accumulation is None else int(micro or 8) * int(accumulation or 1)


def _warn_of_evaluation(result: SearchResult, trainer: Any) -> None:
    """Of an evaluation batch size that was checked and did not fit: it stays the user's."""
    size, check = trainer.args.per_device_eval_batch_size, result.sanity_check
    fits = check and check.eval_batch_size
    if check and fits and fits < size and size in check.eval_batches_tried and trainer.eval_dataset is not None:
        _warn(f"an evaluation batch of {size} ran out of memory, {fits} fits: set per_device_eval_batch_size={fits}")


def _warn_of_optimizer(result: SearchResult, optimizer: Any) -> None:
    """Of a user's own optimizer if the answer was measured with another one."""
    default = OWN if result.workload.own_optimizer else user_optimizer(result.request.training_args)
    measured = result.best.configuration.values.get("optimizer", default)
    if optimizer is not None and measured != OWN:
        name = type(optimizer).__name__
        _warn(f"your {name} stays, but the answer was measured with {measured}: build the Trainer without it")


def _warn(message: str, category: type[UserWarning] = NotApplied) -> None:
    warnings.warn(f"{message[:1].upper()}{message[1:]}.", category, stacklevel=4)


# Model and process ------------------------------------------------------------------------------------------------


def _without_checkpointing(result: SearchResult) -> bool:
    return result.best.configuration.values.get(checkpointing.SETTING.name) == "none"


def _prepare_at_start(result: SearchResult, trainer: Any) -> None:
    """Set precision and checkpointing at each start.

    Another Trainer may have trained the shared model meanwhile, and other arguments may have been built.
    """
    train = trainer.train

    @functools.wraps(train)
    def prepared(*args: Any, **kwargs: Any) -> Any:
        precision.unwrap(trainer.model)
        set_tf32(trainer.args.tf32)
        if _without_checkpointing(result):
            checkpointing.switch_off(trainer.model)
        return train(*args, **kwargs)

    setattr(prepared, BY_AUTOTUNE, True)
    trainer.train = prepared


def prepared_init(result: SearchResult, model_init: Any) -> Any:
    """The `model_init` with the answer's settings on each model; None for None."""
    if model_init is None:
        return None

    @functools.wraps(model_init)
    def prepared(*args: Any) -> Any:
        model = model_init(*args)
        prepare_model(result, model)
        return model

    return prepared


def prepare_model(result: SearchResult, model: Any) -> None:
    """Set what a built model can take, and warn of the rest; attention and weights of `tune`'s models are as measured."""
    if _without_checkpointing(result):
        checkpointing.switch_off(model)
    if result.workload.user_objects:
        return
    arguments = result.setup.model_arguments
    for name in ("attn_implementation", "experts_implementation"):
        value = arguments.get(name)
        if name in arguments and value != getattr(getattr(model, "config", None), f"_{name}", None):
            try:
                getattr(model, f"set_{name}")(value)
            except (AttributeError, ValueError, ImportError) as error:
                _warn(f"{name} {value} is not set ({error}): from_pretrained(..., {name}={value!r})")
    weights = (weight for weight in model.parameters() if weight.is_floating_point())
    dtype = next((str(weight.dtype).removeprefix("torch.") for weight in weights), "")
    if dtype and arguments.get("dtype", dtype) != dtype:
        _warn(f"the model's weights are {dtype}: from_pretrained(..., dtype={arguments['dtype']!r})")


def prepare_data(result: SearchResult, trainer: Any) -> None:
    """Set how the answer pads and masks batches."""
    from autotune.workload.data.collate import collated_as_asked

    arguments = result.setup.data_arguments
    if arguments.get(PADDING) and not hasattr(trainer.data_collator, PADDING):
        _warn(f"your collator has no {PADDING}; the answer pads to {arguments[PADDING]}")
    trainer.data_collator = collated_as_asked(trainer.data_collator, arguments)


@contextlib.contextmanager
def regional_compilation(result: SearchResult) -> Iterator[None]:
    """A Trainer reads from a variable alone, when it is built, whether regions are compiled."""
    before, value = os.environ.pop(REGIONAL, None), result.setup.variables.get(REGIONAL)
    if value is not None:
        os.environ[REGIONAL] = value
    try:
        yield
    finally:
        os.environ.pop(REGIONAL, None)
        if before is not None:
            os.environ[REGIONAL] = before


def set_process(result: SearchResult, ranks: int) -> None:
    """Set what this process can still take, and warn of what it has to be started with."""
    import torch

    for name, allowed in result.setup.switches.items():
        getattr(torch.backends.cuda, name)(allowed)
    variables = dict(result.setup.variables)
    variables.pop(REGIONAL, None)
    if threads := variables.pop(THREADS, None):
        torch.set_num_threads(int(threads))
    missing = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    if missing or result.setup.processes != ranks:
        _warn(f"the answer was measured in a process that starts so: {launch_line(result.setup.processes, missing)}")
