"""Task of a model, and the model built from its config, with random weights or its local ones."""

import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch
import transformers
from accelerate.hooks import remove_hook_from_submodules
from torch._guards import detect_fake_mode
from transformers import AutoConfig, BitsAndBytesConfig
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.models.auto import modeling_auto

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.workload import Workload
from autotune.space.settings.experts import NAMES as EXPERTS
from autotune.space.settings.experts import implementation
from autotune.workload.hub import first_line
from autotune.workload.model.adapters import in_four_bits, made_in_four_bits
from autotune.workload.model.values import drawn, without_values
from autotune.workload.model.weights import weights_folder

# In the order of preference: a BERT can be a causal model too, and a BART a masked one, but few people train them so.
_AUTO_CLASSES = {
    "seq2seq-lm": ("AutoModelForSeq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
    "image-classification": ("AutoModelForImageClassification", "IMAGE_CLASSIFICATION"),
    "masked-lm": ("AutoModelForMaskedLM", "MASKED_LM"),
    "causal-lm": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "sequence-classification": ("AutoModelForSequenceClassification", "SEQUENCE_CLASSIFICATION"),
    "token-classification": ("AutoModelForTokenClassification", "TOKEN_CLASSIFICATION"),
    "question-answering": ("AutoModelForQuestionAnswering", "QUESTION_ANSWERING"),
}
"""Task -> the class of transformers, and the part of the name of its table `MODEL_FOR_..._MAPPING_NAMES`."""

_FLASH = {"flash_attention_2": "flash-attn", "flash_attention_3": "flash-attn-3"}
"""Implementation of attention -> its package. transformers' `is_flash_attn_2_available` says no where no GPU is visible, as
where a model is read."""


def choose_task(config: Any, task: str | None) -> str:
    """The requested task, else the task of the config's architecture or model type. Raises InvalidRequest for none."""
    tasks = tasks_of(config)
    if not tasks:
        raise InvalidRequest(
            f"A {config.model_type} model has no task that autotune can train.",
            f"Choose a model with one of: {', '.join(_AUTO_CLASSES)}.",
        )
    if task is None:
        return _task_of_architecture(config, tasks) or tasks[0]
    if task not in tasks:
        raise InvalidRequest(f"A {config.model_type} model has no task {task!r}.", did_you_mean(task, tasks))
    return task


def tasks_of(config: Any) -> tuple[str, ...]:
    """The tasks that transformers, or the model's code, has a class for; the usual one first.

    None for models of speech: some have a text decoder that could be trained alone, which is not what they are for.
    """
    if config.model_type in modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES:
        return ()
    remote = getattr(config, "auto_map", None) or {}
    return tuple(
        task for task, (name, _) in _AUTO_CLASSES.items() if config.model_type in _class_names(task) or name in remote
    )


def auto_class(task: str) -> Any:
    """The `AutoModelFor...` class of a task."""
    return getattr(transformers, _AUTO_CLASSES[task][0])


def config_of(workload: Workload) -> Any:
    """The config of a workload, rebuilt; a model with its code is opened from its source for the class."""
    values = dict(workload.model_config)
    if not _has_own_code(workload):
        return AutoConfig.for_model(**values)
    # The files were fetched when the workload was prepared: no probe should wait for the hub.
    opened = AutoConfig.from_pretrained(workload.source, trust_remote_code=True, local_files_only=True)
    config = type(opened).from_dict(values)
    config._name_or_path = workload.source
    return config


def _has_own_code(workload: Workload) -> bool:
    return workload.trust_remote_code and "auto_map" in workload.model_config


def plain_config(config: Any) -> dict[str, Any]:
    """Every value of a config as JSON has it, so that it survives a file and builds the same model."""
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    values["model_type"] = config.model_type
    return values


def build_model(
    workload: Workload,
    config: Any = None,
    *,
    device: str = "cpu",
    model_arguments: Mapping[str, Any] | None = None,
    weights: str = "",
    sharding_rank: int | None = None,
) -> Any:
    """The workload's model, in training mode, checkpointing off.

    device: of its weights; model_arguments: of `from_config`, their `dtype` (default float32) by its name; weights: the place
    of the model's weights, as of `local_weights`, empty for random ones. What they lack (a new head) is random. sharding_rank: of
    a training that will shard the model: rank 0 has the weights, in the host's memory, and the others have none.
    """
    config = config_of(workload) if config is None else config
    others = dict(model_arguments or {})
    arguments = _arguments(workload.trust_remote_code, others.pop("dtype", "float32"))
    four_bits = others.pop("quantization_config", None)
    arguments |= others
    if weights and not sharding_rank:
        model = _loaded(workload, config, arguments, four_bits, weights, device if sharding_rank is None else "cpu")
    elif four_bits or sharding_rank is not None or (device == "cuda" and _is_drawn_by_layers(workload)):
        model = _made(workload, config, arguments, four_bits, device, sharding_rank)
    else:
        with torch.device(device):
            model = auto_class(workload.task).from_config(config, **arguments)
    if supports_checkpointing(model):  # a config saved with `gradient_checkpointing: true` switches it on silently
        newer = hasattr(model, "activation_checkpointing_disable")
        model.activation_checkpointing_disable() if newer else model.gradient_checkpointing_disable()
    return model.train()


def _is_drawn_by_layers(workload: Workload) -> bool:
    """True if the model can be made without storage: DeepSpeed's stage 3 makes its own, and a model with its code may need it."""
    return not is_deepspeed_zero3_enabled() and not _has_own_code(workload)


def _loaded(
    workload: Workload,
    config: Any,
    arguments: Mapping[str, Any],
    four_bits: Mapping[str, Any] | None,
    weights: str,
    device: str,
) -> Any:
    """The model with these weights: each goes from the mapped file to the device at once, in its dtype or packed there."""
    more: dict[str, Any] = {"quantization_config": BitsAndBytesConfig(**four_bits)} if four_bits else {}
    if (four_bits or device == "cuda") and not is_deepspeed_zero3_enabled():  # which divides them while they are read
        more["device_map"] = {"": torch.cuda.current_device() if device == "cuda" else device}
    model = auto_class(workload.task).from_pretrained(
        weights_folder(weights),
        config=config,
        local_files_only=True,
        ignore_mismatched_sizes=True,
        **more,
        **arguments,
    )
    # A model on one device is none that is spread over several, as Trainer and accelerate would take it by these.
    vars(model).pop("hf_device_map", None)
    remove_hook_from_submodules(model)
    return model


def _made(
    workload: Workload,
    config: Any,
    arguments: Mapping[str, Any],
    four_bits: Mapping[str, Any] | None,
    device: str,
    sharding_rank: int | None,
) -> Any:
    """The model with random weights, never whole in float32 on the device if it is packed or sharded.

    One that cannot be made without storage first is made on the CPU. Fake tensors, which have none, are made on the device.
    """
    is_fake = detect_fake_mode() is not None
    place = device if is_fake else "cpu" if _has_own_code(workload) else "meta"
    model = _without_storage(workload.task, config, arguments, place)
    is_outline = next(model.parameters()).is_meta
    if four_bits:
        return made_in_four_bits(model, four_bits, device) if is_outline else in_four_bits(model, four_bits).to(device)
    if sharding_rank is None:
        return drawn(model, device) if is_outline else model if is_fake else model.to(device)
    if sharding_rank:
        return without_values(model) if is_outline else model
    return drawn(model, device, lambda place: model.get_submodule(place).cpu()).cpu() if is_outline else model


def model_outline(config: Any, task: str, trust_remote_code: bool = False, dtype: str = "float32") -> Any:
    """The model without storage, on torch's meta device: all shapes and flags, no memory.

    A model that cannot be built there is built on the CPU. Raises InvalidRequest if that fails too.
    """
    try:
        return _without_storage(task, config, _arguments(trust_remote_code, dtype))
    except Exception as error:
        raise InvalidRequest(
            f"The {config.model_type} model cannot be built from its config: {first_line(error)}.",
            "Check the config's values and that the libraries the model needs are installed.",
        ) from error


def _without_storage(task: str, config: Any, arguments: Mapping[str, Any], device: str = "meta") -> Any:
    try:
        with torch.device(device):
            return auto_class(task).from_config(config, **arguments)
    except Exception:  # some models compute with values of their weights while they are built
        return auto_class(task).from_config(config, **arguments)


def count_parameters(model: Any) -> tuple[int, int]:
    """(parameters, bytes of them as float32); tied weights count once."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters, 4 * parameters


def supports_checkpointing(model: Any) -> bool:
    """True if the model, or the model class, can recompute activations in the backward pass."""
    return bool(getattr(model, "supports_gradient_checkpointing", False))


def attentions(model: Any) -> dict[str, str | None]:
    """Implementation of attention -> None if this model's class and the installed packages support it, else the reason."""
    flash = bool(getattr(model, "_supports_flash_attn", False) or getattr(model, "_supports_flash_attn_2", False))
    supported = {
        "eager": True,
        "sdpa": getattr(model, "_supports_sdpa", False),
        **dict.fromkeys(_FLASH, flash),
        "flex_attention": getattr(model, "_supports_flex_attn", False),
    }
    unsupported = f"{type(model).__name__} does not support it"
    reasons = {name: None if is_supported else unsupported for name, is_supported in supported.items()}
    for name, package in _FLASH.items():
        if flash and not any(metadata.distributions(name=package)):
            reasons[name] = f"{package} is not installed"
    return reasons


def experts(model: Any) -> tuple[str, dict[str, str | None]]:
    """(implementation of experts that the model takes by default, implementation -> None if it is available, else the reason).

    Empty if this model has no experts, or if this transformers cannot choose how they are computed.
    """
    if (default := implementation(model)) is None:
        return "", {}
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    names = ("eager", *ALL_EXPERTS_FUNCTIONS.keys())
    reasons: dict[str, str | None] = dict.fromkeys(name for name in EXPERTS if name in names)
    if "grouped_mm" in reasons and default != "grouped_mm":
        # Models fall back themselves if they cannot.
        reasons["grouped_mm"] = f"{type(model).__name__} cannot dispatch it here"
    return default, reasons


def _class_names(task: str) -> Mapping[str, Any]:
    names: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{_AUTO_CLASSES[task][1]}_MAPPING_NAMES", {})
    return names


def _task_of_architecture(config: Any, tasks: tuple[str, ...]) -> str | None:
    """The first task whose class the config names as its architecture; None for a bare body."""
    for architecture in getattr(config, "architectures", None) or ():
        for task in tasks:
            names = _class_names(task).get(config.model_type, ())
            if architecture in ((names,) if isinstance(names, str) else names):
                return task
    return None


def _arguments(trust_remote_code: bool, dtype: str) -> dict[str, Any]:
    """Arguments of `from_config` and `from_pretrained`."""
    return {"trust_remote_code": trust_remote_code, "dtype": getattr(torch, dtype)}
