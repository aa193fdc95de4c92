"""Trace of an optimizer's step: its states, made in the first one, and temporary memory."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from autotune.core.failures import from_exception
from autotune.memory.trace import STATES, UPDATE, UPDATE_FIRST
from autotune.probe.trace.tracker import Tracker
from autotune.workload.model.adapters import adapted

SMALLEST_8BIT, BLOCK_8BIT, MAP_8BIT = 4096, 256, 256
"""bitsandbytes' `Optimizer2State`: tensors of fewer values keep float32 states; one absmax a block; entries of a map."""

IN_32_BITS = (torch.nn.Embedding,)
"""Layers whose states the Trainer registers to be of 32 bits."""

TRACEABLE = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")
"""Optimizers of torch and transformers themselves: their own steps are run on tensors without storage."""

NAMED_FIELDS = ("optim", "optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
"""Fields of the training arguments that an optimizer is made from."""


def trace_update(outline: Any, fields: Mapping[str, Any], scratch: Path, *, foreach: bool) -> dict[str, Any]:
    """{"tape": plain data} of the first and a later step of the named optimizer, or {"error": why not}.

    One that cannot be traced without storage has AdamW's tape, and its name in `states_of`.
    outline: the whole model without storage. fields: training arguments, and `adapter` if one is trained instead.
    foreach: whether torch's optimizers work on all tensors at once by default, as on CUDA.
    """
    try:
        if adapter := fields.get("adapter"):
            outline = adapted(copy.deepcopy(outline), adapter)
        name = str(getattr(fields.get("optim"), "value", fields.get("optim")))
        if (rule := rule_of_bitsandbytes(name)) is not None:
            return {"tape": _states_of_bitsandbytes(outline, rule)}
        if fields.get("optim") is None or name in TRACEABLE or name not in {*OptimizerNames}:
            return {"tape": _traced(outline, fields, foreach, scratch)}
        return {"tape": _traced(outline, {**fields, "optim": "adamw_torch"}, foreach, scratch), "states_of": name}
    except Exception as error:
        return {"error": from_exception(error, "optimizer").reason}


class StateRule(NamedTuple):
    """States of bitsandbytes for each parameter: tensors of 8 or 32 bits, and how many of its size are in the first."""

    bits: int
    states: int
    in_the_first: int = 1


def rule_of_bitsandbytes(name: str) -> StateRule | None:
    """The rule of an optimizer's name in transformers; None for another library's.

    AdamW keeps two states, Lion and RMSprop one (`Optimizer1State`), AdEMAMix three, two of them in one tensor.
    """
    plain = name.removeprefix("paged_")
    kind = next((kind for kind in ("adamw", "lion", "rmsprop", "ademamix") if plain.startswith(kind)), "")
    suffix = plain.removeprefix(kind)
    if not kind or suffix not in ("_8bit", "_32bit", "_bnb", "_bnb_8bit", "_bnb_32bit", *([""] * (kind == "ademamix"))):
        return None
    bits = 8 if suffix.endswith("_8bit") else 32
    return StateRule(bits, 1 if kind in ("lion", "rmsprop") else 2, 2 if kind == "ademamix" else 1)


def _traced(outline: Any, fields: Mapping[str, Any], foreach: bool, scratch: Path) -> dict[str, Any]:
    named_fields = {name: fields[name] for name in NAMED_FIELDS if name in fields}
    arguments = TrainingArguments(output_dir=str(scratch / "output"), use_cpu=True, report_to="none", **named_fields)
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
    decayed = set(Trainer.get_decay_parameter_names(None, outline))
    clip = float(fields.get("max_grad_norm", 1.0) or 0.0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        groups: tuple[list[Any], list[Any]] = ([], [])
        for name, weight in outline.named_parameters():
            if weight.requires_grad:
                parameter = torch.nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype))
                parameter.grad = torch.empty_like(parameter)
                groups[name not in decayed].append(parameter)
        decay = float(fields.get("weight_decay", 0.0))
        named = [{"params": groups[0], "weight_decay": decay}, {"params": groups[1], "weight_decay": 0.0}]
        parameters = [*groups[0], *groups[1]]
        with Tracker(iter([*parameters, *(parameter.grad for parameter in parameters)])) as tracker:
            tracker.begin(UPDATE_FIRST)
            optimizer = kind([group for group in named if group["params"]], **options)  # Adagrad makes its states here
            if foreach and not optimizer.defaults.get("fused"):
                for group in optimizer.param_groups:
                    if "foreach" in group and group["foreach"] is None:
                        group["foreach"] = True
            for phase in (UPDATE_FIRST, UPDATE):
                if phase != UPDATE_FIRST:
                    tracker.begin(phase)
                if clip:
                    torch.nn.utils.clip_grad_norm_(parameters, clip, foreach=foreach or None)
                optimizer.step()
                if phase == UPDATE_FIRST:
                    tracker.call_living(STATES)
            return dict(tracker.to_dict())


def _states_of_bitsandbytes(outline: Any, rule: StateRule) -> dict[str, Any]:
    """The tape by rule: bitsandbytes' kernels cannot be run without storage.

    In 8 bits a state has a byte for each value, a float32 for each 256 values, and a shared map of 256 float32; 4 bytes for
    each value of tensors of fewer than 4,096, and of embeddings, as the Trainer registers them. Paged states count too.
    """
    embeddings = {id(layer.weight) for layer in outline.modules() if isinstance(layer, IN_32_BITS)}
    shares = [rule.in_the_first, *([1] * (rule.states - 1))]
    sizes: list[int] = []
    mapped = False
    for weight in outline.parameters():
        values = weight.numel()
        if not weight.requires_grad:
            continue
        if rule.bits == 32 or values < SMALLEST_8BIT or id(weight) in embeddings:
            sizes += [4 * values * share for share in shares]
        else:
            mapped = True
            sizes += [values * share for share in shares]
            sizes += [4 * -(-values // BLOCK_8BIT) * share for share in shares]
    sizes = [*([MAP_8BIT * 4] * (rule.states if mapped else 0)), *sizes]
    segments = [[UPDATE_FIRST, None, 0, False, list(range(len(sizes)))], [UPDATE, None, 0, False, []]]
    return {"sizes": sizes, "kinds": [STATES] * len(sizes), "segments": segments}
