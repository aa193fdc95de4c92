"""Check of the user's TrainingArguments before a search."""

import enum
import math
import tempfile
import types
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from transformers import SchedulerType, TrainingArguments, get_scheduler

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.space.user_arguments import FILES
from autotune.workload.hub import first_line

OF_THE_DEVICE = ("tf32", "fsdp", "fsdp_config", "deepspeed", "ddp_backend", "parallelism_config")
"""Fields that depend on the device and the number of ranks of each configuration: unavailable values are ruled out there."""

_WIDER = {"fsdp": bool | list}
"""Fields that take more than they are declared as: `fsdp` is a text there, and true by its documentation."""

PLATEAU = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
"""Schedulers that follow a measured loss, which `get_scheduler` does not make."""

_STEPS = 1000
_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a text", dict: "a mapping"}
_WORDS |= {list: "a list", type(None): "null"}


def check_arguments(fields: Mapping[str, Any]) -> None:
    """Raise InvalidRequest, one line that names the field, if transformers or torch refuse these arguments.

    Their types are checked as `TrainingArguments` declares them, then they are built for the CPU, with AdamW and the
    scheduler that they name. fields: as they differ from the defaults.
    """
    hints = typing.get_type_hints(TrainingArguments)
    for name, value in fields.items():
        _check_value(name, value, hints[name] | _WIDER[name] if name in _WIDER else hints[name])
    for name in FILES:
        file = fields.get(name)
        if isinstance(file, str) and file.endswith(".json") and not Path(file).is_file():
            raise InvalidRequest(
                f"Your training arguments: {name} names {file}, which does not exist.", "Check the path."
            )
    built = {name: value for name, value in fields.items() if name not in OF_THE_DEVICE}
    try:
        with warnings.catch_warnings(action="ignore"):
            arguments = TrainingArguments(
                output_dir=tempfile.gettempdir(), **{**built, "use_cpu": True, "report_to": "none"}
            )
        for name in built:
            if name.endswith("_kwargs") and not isinstance(getattr(arguments, name), (dict, type(None))):
                raise ValueError(f"{name} is not a mapping")
        optimizer = torch.optim.AdamW(
            [torch.zeros(1)],
            lr=arguments.learning_rate,
            betas=(arguments.adam_beta1, arguments.adam_beta2),
            eps=arguments.adam_epsilon,
            weight_decay=arguments.weight_decay,
        )
        if arguments.lr_scheduler_type not in PLATEAU:
            get_scheduler(
                arguments.lr_scheduler_type,
                optimizer,
                num_warmup_steps=arguments.get_warmup_steps(_STEPS),
                num_training_steps=_STEPS,
                scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
            )
    except Exception as error:  # whatever transformers or torch raise, no probe could be trained with these
        raise InvalidRequest(
            f"Your training arguments cannot be used: {first_line(error)}.", "Fix them, and try again."
        ) from error


def _check_value(name: str, value: Any, hint: Any) -> None:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for kind in kinds:
        if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, enum.Enum):
            words = [member.value for member in kind]
            if value not in words:
                raise InvalidRequest(
                    f"Your training arguments: there is no {name} {value!r}.", did_you_mean(value, words)
                )
    try:
        TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, strict=True)).validate_python(value)
    except PydanticUserError:
        pass  # a type that only transformers knows
    except ValidationError:
        wanted = " or ".join(
            dict.fromkeys(filter(None, (_WORDS.get(typing.get_origin(kind) or kind) for kind in kinds)))
        )
        raise InvalidRequest(
            f"Your training arguments: {name} is {value!r}.", f"Make it {wanted or 'as its documentation says'}."
        ) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"Your training arguments: {name} is {value}.", "Make it a finite number.")
