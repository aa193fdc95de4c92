"""What is taken out of a built Trainer: its arguments as fields, what its constructor was given, and why it cannot be had."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from autotune.errors import InvalidRequest

PARTS = (
    *("model", "args", "train_dataset", "eval_dataset", "data_collator", "processing_class", "callbacks", "model_init"),
    *("optimizers", "compute_metrics", "preprocess_logits_for_metrics"),
)
"""Parameters of a Trainer's constructor that are looked after one by one."""

DONE = ("peft_config", "quantization_config", "formatting_func")
"""TRL's parameters whose work is done once a Trainer is built: model and dataset carry it."""

PREPARED: dict[str, Any] = {"dataset_kwargs": {"skip_prepare_dataset": True}, "chat_template_path": None}
"""TRL's fields -> what they must say where dataset and tokenizer come prepared from a built Trainer (TRL's SFTConfig,
`dataset_kwargs`): else it would truncate and pack the dataset once more. A dict joins the user's own."""


def check(trainer: Any) -> None:
    """Raise InvalidRequest, one line with advice, for a Trainer that cannot be searched for as it is."""
    args, model, data = trainer.args, trainer.model, trainer.train_dataset
    if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
        raise InvalidRequest(
            "The Trainer shards its model with DeepSpeed or FSDP.",
            "Build it without them and search with space='multi-gpu', which tries them.",
        )
    if args.world_size > 1:
        raise InvalidRequest(
            f"This is one of {args.world_size} ranks.",
            "Call tune in a script of one process; it starts ranks by itself.",
        )
    if args.n_gpu > 1:
        raise InvalidRequest(
            f"The Trainer sees {args.n_gpu} GPUs and would multiply its batch by them (nn.DataParallel).",
            "Set CUDA_VISIBLE_DEVICES to one of them before the script starts.",
        )
    places = {one.device.type if one.device.type == "meta" else str(one.device) for one in model.parameters()}
    if "meta" in places:
        raise InvalidRequest(
            "The Trainer's model lies on the device meta: it has no weights.", "Load its weights first."
        )
    if len(places) > 1:
        raise InvalidRequest(
            f"The Trainer's model is spread over {', '.join(sorted(places))}.", "Load it without device_map."
        )
    if data is None:
        raise InvalidRequest("The Trainer has no train_dataset.", "Build it with the dataset it will train on.")
    if not hasattr(data, "__len__") and args.max_steps <= 0:
        raise InvalidRequest(
            f"The train_dataset ({type(data).__name__}) has no length and the arguments no max_steps.",
            "Set max_steps: without it the Trainer does not know when to end.",
        )


def own_fields(args: Any) -> dict[str, Any]:
    """The fields that only the user's own class of arguments has, where they are not as declared; dataset prepared."""
    from transformers import TrainingArguments

    usual = {one.name for one in dataclasses.fields(TrainingArguments)}
    mine = [one for one in dataclasses.fields(args) if one.init and one.name not in usual]
    fields = {one.name: getattr(args, one.name) for one in mine if getattr(args, one.name) != one.default}
    return fields | prepared_fields(args)


def prepared_fields(args: Any) -> dict[str, Any]:
    """`PREPARED`, as far as the class of these arguments has such fields."""
    names = {one.name for one in dataclasses.fields(args)}
    return {
        name: {**(getattr(args, name) or {}), **value} if isinstance(value, Mapping) else value
        for name, value in PREPARED.items()
        if name in names
    }


def further_arguments(trainer: Any) -> tuple[dict[str, Any], list[str]]:
    """(what else the Trainer's constructor was given and keeps under its name, parameters whose value it does not keep).

    A None among the values was given in the place of another default.

    Raises InvalidRequest where one of those has no default.
    """
    found, lost = {}, []
    for name, parameter in _parameters(type(trainer)).items():
        if name in (*PARTS, *DONE):
            continue
        if hasattr(trainer, name):
            if getattr(trainer, name) is not parameter.default:
                found[name] = getattr(trainer, name)
        elif parameter.default is parameter.empty:
            raise InvalidRequest(
                f"{type(trainer).__name__} needs {name!r}, which it does not keep under that name.",
                f"Let its __init__ say `self.{name} = {name}`.",
            )
        else:
            lost.append(name)
    return found, lost


def accepted(trainer_class: type) -> set[str]:
    """The names that this class's constructor takes."""
    return set(_parameters(trainer_class))


def collator_of(trainer: Any) -> Any:
    """The Trainer's collator; None where its class insists on making it: TRL's without padding."""
    return None if getattr(trainer, "padding_free", False) else trainer.data_collator


def own_callbacks(trainer: Any) -> list[Any]:
    """The callbacks that the Trainer does not make by itself."""
    return [one for one in trainer.callback_handler.callbacks if type(one) not in _usual_callbacks(trainer.args)]


def optimizer_of(trainer: Any) -> Any:
    """The optimizer that the Trainer holds, whoever made it, without accelerate's wrapping; None before it has one."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def own_optimizers(trainer: Any) -> tuple[Any, Any]:
    """(optimizer, scheduler) that the user brought, without accelerate's wrapping; None for what the Trainer made."""
    optimizer = optimizer_of(trainer)
    scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    if optimizer is trainer.optimizer or not _made_by_trainer(trainer, optimizer):
        return optimizer, None if getattr(trainer, "_created_lr_scheduler", False) else scheduler
    return None, None


def makes_optimizer(trainer_class: type) -> bool:
    """Whether the class makes its optimizer in a way of its own."""
    from transformers import Trainer

    own: Any = trainer_class
    return bool(own.create_optimizer is not Trainer.create_optimizer)


def _made_by_trainer(trainer: Any, optimizer: Any) -> bool:
    """Whether an optimizer that has trained is the one that the arguments name."""
    try:
        kind, settings = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    except Exception:  # a library that is gone: then it was not made from this name
        return False
    return type(optimizer) is kind and all(optimizer.defaults.get(name, one) == one for name, one in settings.items())


def _usual_callbacks(args: Any) -> set[type]:
    from transformers import trainer as made
    from transformers import trainer_callback
    from transformers.integrations import get_reporting_integration_callbacks

    logging = get_reporting_integration_callbacks(args.report_to)
    shown = [made.DEFAULT_PROGRESS_CALLBACK, trainer_callback.PrinterCallback, trainer_callback.ProgressCallback]
    return {*made.DEFAULT_CALLBACKS, *shown, *logging}


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Named parameters of the constructor; of a `**kwargs` those of the class that it hands them to."""
    found: dict[str, inspect.Parameter] = {}
    for one in kind.__mro__:
        if "__init__" not in vars(one):
            continue
        every = list(inspect.signature(one.__init__).parameters.values())[1:]  # type: ignore[misc]
        for parameter in every:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                found.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in every):
            break
    return found
