"""Extract arguments and constructor parameters from an existing Trainer, or the reason why it cannot be tuned."""

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.core.errors import InvalidRequest
from autotune.space.settings.micro_batch_size import GENERATION
from autotune.space.settings.optimizer import ANY
from autotune.workload.data.rows import length_of

PARTS = (
    *("model", "args", "train_dataset", "eval_dataset", "data_collator", "processing_class", "callbacks", "model_init"),
    *("optimizers", "compute_metrics", "preprocess_logits_for_metrics"),
)
"""Parameters of a Trainer's constructor that are read one by one."""

BUILD = "Let a function build it: result = autotune.tune(build, args), then build(result.arguments(args)).train()."
"""Advice, with the lines to write, for a Trainer that cannot be built again from its parts."""

SHARDED = "The Trainer shards its model with DeepSpeed or FSDP."

DATASETS = ("train_dataset", "eval_dataset")

DONE = ("peft_config", "quantization_config", "formatting_func")
"""TRL's parameters with an effect only in the model and the dataset once a Trainer is built."""

SHARED = ("train_dataset", "eval_dataset", "processing_class", "compute_metrics", "preprocess_logits_for_metrics")
"""Parameters that a Trainer keeps unchanged."""

PREPARE = ("_prepare_dataset", "_precompute_ref_logps")
"""TRL's methods that convert a dataset while a Trainer is built: tokenise and pack it, add the reference's logits."""


def check_constructors(trainer: Any) -> None:
    """Raise InvalidRequest for a Trainer and arguments that cannot be built again by their classes."""
    kind = type(trainer).__name__
    if missing := [name for name in ("model", "args", "train_dataset") if name not in accepted(type(trainer))]:
        raise InvalidRequest(
            f"The __init__ of {kind} has no parameter {' and no '.join(missing)}: trials cannot be given theirs.",
            BUILD,
        )
    _check_constructor(trainer.args)


def _check_constructor(args: Any) -> None:
    if constructed_again(args, computed_fields(args)) is None:
        raise InvalidRequest(
            f"{type(args).__name__} cannot be made again from its own fields: its __post_init__ refuses them.",
            "Let __post_init__ accept what it has made.",
        )


def check_arguments(args: Any) -> None:
    """Raise InvalidRequest, one line with advice, for arguments of a Trainer that each probe builds by itself."""
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        raise InvalidRequest(SHARDED, "Search without them and with space='multi-gpu', which tries them.")
    _check_one_process(args)
    _check_steps(args)
    _check_constructor(args)


def check(trainer: Any) -> None:
    """Raise InvalidRequest, one line with advice, for a Trainer that cannot be sent to probes as it is."""
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        raise InvalidRequest(
            f"{type(trainer).__name__} is no transformers Trainer.",
            "Tune the Trainer whose train() it calls: autotune run -- python SCRIPT.",
        )
    ensure_model(trainer)
    args, model = trainer.args, trainer.model
    if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
        raise InvalidRequest(SHARDED, "Build it without them and search with space='multi-gpu', which tries them.")
    _check_one_process(args)
    devices = {str(parameter.device) for parameter in model.parameters()}
    if any(device.startswith("meta") for device in devices):
        raise InvalidRequest("The Trainer's model is on the device meta: it has no weights.", "Load its weights first.")
    if len(devices) > 1:
        raise InvalidRequest(
            f"The Trainer's model is spread over {', '.join(sorted(devices))}.", "Load it without device_map."
        )
    check_training(trainer)
    check_constructors(trainer)


def ensure_model(trainer: Any) -> None:
    """Build the model of a Trainer that has given it up; its `train()` would. Raises InvalidRequest without a `model_init`."""
    if trainer.model is None and trainer.model_init is None:
        raise InvalidRequest("The Trainer has no model.", "Build it with a model, or with a model_init.")
    if trainer.model is None:
        trainer.model = trainer.model_wrapped = trainer.call_model_init()


def check_training(trainer: Any) -> None:
    """Raise InvalidRequest, one line with advice, for a Trainer of which a few steps cannot be measured."""
    ensure_model(trainer)
    args, data = trainer.args, trainer.train_dataset
    _check_steps(args)
    if data is None:
        raise InvalidRequest("The Trainer has no train_dataset.", "Build it with the dataset it will train on.")
    if length_of(data) is None and args.max_steps <= 0:
        raise InvalidRequest(
            f"The train_dataset ({type(data).__name__}) has no length and the arguments no max_steps.",
            "Set max_steps: without it the Trainer does not know when to end.",
        )
    built_with = getattr(trainer, "_train_batch_size", None)
    if built_with and built_with != args.train_batch_size:
        raise InvalidRequest(
            f"The Trainer was built with a micro-batch of {built_with}, which it trains, and its arguments say "
            f"{args.train_batch_size} now.",
            "Set per_device_train_batch_size before the Trainer is built.",
        )


def _check_one_process(args: Any) -> None:
    if args.world_size > 1:
        raise InvalidRequest(
            f"This is one of {args.world_size} ranks.",
            "Call tune in a script of one process; it starts ranks by itself.",
        )


def _check_steps(args: Any) -> None:
    if args.n_gpu > 1:
        raise InvalidRequest(
            f"The Trainer sees {args.n_gpu} GPUs and would multiply its batch by them (nn.DataParallel).",
            "Set CUDA_VISIBLE_DEVICES to one of them before the script starts.",
        )
    if getattr(args, "use_vllm", False):
        raise InvalidRequest(
            "The Trainer generates with vLLM, whose memory and weights probes would share with your own runs.",
            "Search with use_vllm=False, and switch it on again for the real run.",
        )
    micro_steps = (getattr(args, GENERATION, None) or 0) * (getattr(args, "num_iterations", None) or 1)
    if micro_steps and (steps := micro_steps / args.gradient_accumulation_steps) > 1:
        raise InvalidRequest(
            f"The Trainer generates for {steps:g} steps at once, so that a few steps do not tell how long one takes.",
            "Search with num_iterations=1 and the default generation batch, and set them again for the real run.",
        )


def user_fields(args: Any) -> dict[str, Any]:
    """The fields that only the user's class of arguments has, as the user set them."""
    computed = computed_fields(args)
    return {name: getattr(args, name) for name in _changed(args) if name not in computed}


def computed_fields(args: Any) -> dict[str, Any]:
    """The fields among them that the class computes from others -> their defaults, with which it computes them again.

    Passed as the user's they would contradict the others once these change (GRPO's `generation_batch_size` and
    `steps_per_generation`). A field is computed if the class makes the same arguments without it. If either of two follows
    from the other, the one declared first counts as the user's.
    """
    defaults = {field.name: field.default for field in _class_fields(args)}
    candidates = [name for name in reversed(_changed(args)) if defaults[name] is not dataclasses.MISSING]
    computed: dict[str, Any] = {}
    before = -1
    while len(computed) > before:  # again, because the class refuses two fields that exclude each other
        before = len(computed)
        for name in [name for name in candidates if name not in computed]:
            rebuilt = constructed_again(args, {**computed, name: defaults[name]})
            if rebuilt is not None and all(getattr(rebuilt, field) == getattr(args, field) for field in defaults):
                computed[name] = defaults[name]
    return computed


def shares_accumulation(args: Any) -> bool:
    """True if micro-steps share work, so that a step cannot be measured with fewer of them.

    GRPO generates for several at once, and something that such a class computes depends on their number.
    """
    if getattr(args, GENERATION, None):
        return True
    computed = computed_fields(args)
    other = constructed_again(args, {**computed, "gradient_accumulation_steps": 2 * args.gradient_accumulation_steps})
    return other is None or any(getattr(other, name) != getattr(args, name) for name in computed)


def _class_fields(args: Any) -> list[dataclasses.Field[Any]]:
    """Fields that only this class of arguments has."""
    from transformers import TrainingArguments

    usual = {field.name for field in dataclasses.fields(TrainingArguments)}
    return [field for field in dataclasses.fields(args) if field.init and field.name not in usual]


def _changed(args: Any) -> list[str]:
    """Fields that are not as declared."""
    return [field.name for field in _class_fields(args) if getattr(args, field.name) != field.default]


def constructed_again(args: Any, changed: Mapping[str, Any]) -> Any:
    """The arguments as their class would make them with these fields changed; None if it refuses them.

    By a copy, which has its device already: new arguments would reset accelerate, which the Trainer uses.
    """
    rebuilt = copy.copy(args)
    for field in dataclasses.fields(args):
        setattr(rebuilt, field.name, unshared(changed.get(field.name, getattr(args, field.name))))
    try:
        with warnings.catch_warnings(action="ignore"):
            rebuilt.__post_init__()
    except Exception:  # whatever a class checks
        return None
    return rebuilt


def arguments(kind: type, values: Mapping[str, Any]) -> Any:
    """Arguments of this class with these fields, whatever its `__post_init__` would make of them.

    Values of a built object have been through `__post_init__` already: its changes must not be made twice. Fields
    of `TrainingArguments` are as that class alone makes them; fields of a user's class that are not among the
    values are as the class makes them.
    """
    from transformers import TrainingArguments

    usual = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of fields that the user has set
        plain = TrainingArguments(**{name: unshared(value) for name, value in values.items() if name in usual})
        if kind is TrainingArguments:
            return plain
        made = kind(**{name: unshared(value) for name, value in values.items()})
    vars(made).update(vars(plain) | {name: value for name, value in values.items() if name not in usual})
    return made


def unshared(value: Any) -> Any:
    """A copy of a list or dict; anything else as it is."""
    return copy.deepcopy(value) if isinstance(value, (dict, list)) else value


def prepared_fields(args: Any) -> dict[str, Any]:
    """TRL's fields of these arguments -> their value if dataset and tokenizer come prepared from a built Trainer."""
    return {"chat_template_path": None} if hasattr(args, "chat_template_path") else {}


def parts(trainer: Any) -> dict[str, Any]:
    """The arguments of the constructor that are this Trainer's, without its model, arguments, callbacks and optimizer."""
    given = {"data_collator": collator_of(trainer), **{name: getattr(trainer, name) for name in SHARED}}
    # None among the further ones was given as such.
    return {name: part for name, part in given.items() if part is not None} | further_arguments(trainer)


def models(trainer: Any) -> Any:
    """The Trainer's model and others that it holds, such as the reference model of DPO: a torch.nn.ModuleList."""
    import torch

    held = (trainer.model, *(value for value in vars(trainer).values() if isinstance(value, torch.nn.Module)))
    return torch.nn.ModuleList({id(model): model for model in held}.values())


def built_again(trainer_class: type, parts: Mapping[str, Any]) -> Any:
    """A Trainer of this class that takes its datasets as they come: from a built Trainer, which prepared them.

    parts: by the constructor's names; names that it does not have are left out. Its arguments stay what they are, whatever the
    constructor changes. Raises InvalidRequest if one cannot be set back.
    """
    args, parameters = parts["args"], _parameters(trainer_class)
    before = {name: unshared(value) for name, value in vars(args).items()}
    unprepared = {name: lambda _, dataset, *__, **___: dataset for name in PREPARE if hasattr(trainer_class, name)}
    trainer: Any = object.__new__(trainer_class)
    trainer.__class__ = type(trainer_class.__name__, (trainer_class,), unprepared) if unprepared else trainer_class
    needed = {
        name: None for name in PARTS if name in parameters and parameters[name].default is inspect.Parameter.empty
    }
    trainer.__init__(**needed | {name: part for name, part in parts.items() if name in parameters})
    trainer.__class__ = trainer_class  # it prepares later datasets as its class does
    vars(trainer.args).update(before)
    trainer._train_batch_size = trainer.args.train_batch_size  # as read by a constructor that had changed it
    for field in dataclasses.fields(args):
        if getattr(trainer.args, field.name) != before.get(field.name, getattr(args, field.name)):
            raise InvalidRequest(
                f"{trainer_class.__name__} changes {field.name} to {getattr(trainer.args, field.name)!r} for good.",
                BUILD,
            )
    return trainer


def further_arguments(trainer: Any) -> dict[str, Any]:
    """The constructor's other arguments that the Trainer keeps under their names; a None was given instead of another default.

    What others have done is compared with a fresh Trainer's. Raises InvalidRequest if one that is not kept has no default.
    """
    values = {}
    for name, parameter in _parameters(type(trainer)).items():
        if name in (*PARTS, *DONE):
            continue
        if hasattr(trainer, name):
            if getattr(trainer, name) is not parameter.default:
                values[name] = getattr(trainer, name)
        elif parameter.default is parameter.empty:
            raise InvalidRequest(
                f"{type(trainer).__name__} needs {name!r}, which it does not keep under that name.",
                f"Add `self.{name} = {name}` to its __init__. {BUILD}",
            )
    return values


def accepted(trainer_class: type) -> set[str]:
    """The names that this class's constructor takes."""
    return set(_parameters(trainer_class))


def collator_of(trainer: Any) -> Any:
    """The Trainer's collator; None if its class insists on making it: TRL's without padding, and classes that generate."""
    makes_it = getattr(trainer, "padding_free", False) or "data_collator" not in accepted(type(trainer))
    return None if makes_it else trainer.data_collator


def user_callbacks(trainer: Any) -> list[Any]:
    """The callbacks that the Trainer does not add itself."""
    usual = _usual_callbacks(trainer.args)
    return [callback for callback in trainer.callback_handler.callbacks if type(callback) not in usual]


def optimizer_of(trainer: Any) -> Any:
    """The Trainer's optimizer, whoever made it, without accelerate's wrapper; None before it has one."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def user_optimizers(trainer: Any) -> tuple[Any, Any]:
    """(optimizer, scheduler) that the user passed, without accelerate's wrapper; None if the Trainer made it."""
    optimizer = optimizer_of(trainer)
    scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    if optimizer is trainer.optimizer or not _made_by_trainer(trainer, optimizer):
        return optimizer, None if getattr(trainer, "_created_lr_scheduler", False) else scheduler
    return None, None


def optimizer_name(trainer: Any) -> str:
    """Class of the user's optimizer; ANY if the Trainer's class makes it, empty if the arguments name it."""
    from transformers import Trainer

    optimizer, _ = user_optimizers(trainer)
    kind = type(optimizer) if optimizer else (getattr(trainer, "optimizer_cls_and_kwargs", None) or (None,))[0]
    if kind is not None:
        return str(kind.__name__)
    trainer_class: Any = type(trainer)
    return "" if trainer_class.create_optimizer is Trainer.create_optimizer else ANY


def _made_by_trainer(trainer: Any, optimizer: Any) -> bool:
    """True if an optimizer that has trained is the one that the arguments name."""
    try:
        kind, settings = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    except Exception:  # a library that is gone: then it was not made from this name
        return False
    defaults = optimizer.defaults
    return type(optimizer) is kind and all(defaults.get(name, value) == value for name, value in settings.items())


def _usual_callbacks(args: Any) -> set[type]:
    from transformers import trainer, trainer_callback
    from transformers.integrations import get_reporting_integration_callbacks

    named = [args.report_to] if isinstance(args.report_to, str) else args.report_to
    logging = get_reporting_integration_callbacks(
        [name for name in named if name != "none"]
    )  # set later, as SetFit does
    shown = [trainer.DEFAULT_PROGRESS_CALLBACK, trainer_callback.PrinterCallback, trainer_callback.ProgressCallback]
    return {*trainer.DEFAULT_CALLBACKS, *shown, *logging}


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Named parameters of the constructor; for `**kwargs` the parameters of the class that gets them."""
    named: dict[str, inspect.Parameter] = {}
    for owner in kind.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = list(inspect.signature(owner.__init__).parameters.values())[1:]  # type: ignore[misc]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                named.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return named


def identity_of(trainer: Any, callbacks: Iterable[Any]) -> str:
    """Names of the classes of the Trainer, its arguments, collator and these callbacks."""
    parts = (type(trainer), type(trainer.args), trainer.data_collator, *callbacks)
    return repr([class_name(part) for part in parts])


def class_name(part: Any) -> str:
    """Qualified name of a class or function, of another object's class, or those of several in a tuple or list."""
    if isinstance(part, (tuple, list)):
        return ", ".join(map(class_name, part))
    return str(getattr(part, "__qualname__", type(part).__qualname__))
