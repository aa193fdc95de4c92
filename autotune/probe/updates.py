"""Traces what an optimizer's step makes: its states in the first, and what it needs beside them in every one."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Trainer, TrainingArguments

from autotune.memory_tape import STATES, UPDATE, UPDATE_FIRST
from autotune.probe.adapters import adapted
from autotune.probe.failures import from_exception
from autotune.probe.tracker import Tracker

SMALLEST_8BIT, BLOCK_8BIT, MAP_8BIT = 4096, 256, 256
"""bitsandbytes' `Optimizer2State`: tensors of fewer values keep float32 states; one absmax a block; entries of a map."""

NAMED_FIELDS = ("optim", "optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
"""Fields of the training arguments that an optimizer is made from."""


def trace_update(
    outline: Any, asked: Mapping[str, Any], scratch: Path, *, foreach: bool, embeddings_in_8_bits: bool = False
) -> dict[str, Any]:
    """{"tape": plain data} of the first and every later step of the named optimizer, or {"error": why not}.

    outline: the whole model without storage. asked: training arguments, and `adapter` where one is trained instead.
    foreach: whether torch's own optimizers work on
    all tensors at once where nobody chose, as on CUDA. embeddings_in_8_bits: as without the Trainer's exception for them.
    """
    try:
        if adapter := asked.get("adapter"):
            outline = adapted(copy.deepcopy(outline), adapter)
        if "8bit" in str(asked.get("optim")):
            return {"tape": _states_of_8bit(outline, embeddings_in_8_bits)}
        return {"tape": _traced(outline, asked, foreach, scratch)}
    except Exception as error:
        return {"error": from_exception(error, "optimizer").reason}


def _traced(outline: Any, asked: Mapping[str, Any], foreach: bool, scratch: Path) -> dict[str, Any]:
    fields = {name: asked[name] for name in NAMED_FIELDS if name in asked}
    arguments = TrainingArguments(output_dir=str(scratch / "output"), use_cpu=True, report_to="none", **fields)
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
    decayed = set(Trainer.get_decay_parameter_names(None, outline))
    clip = float(asked.get("max_grad_norm", 1.0) or 0.0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        groups: tuple[list[Any], list[Any]] = ([], [])
        for name, one in outline.named_parameters():
            if one.requires_grad:
                parameter = torch.nn.Parameter(torch.empty(one.shape, dtype=one.dtype))
                parameter.grad = torch.empty_like(parameter)
                groups[name not in decayed].append(parameter)
        decay = float(asked.get("weight_decay", 0.0))
        named = [{"params": groups[0], "weight_decay": decay}, {"params": groups[1], "weight_decay": 0.0}]
        optimizer = kind([group for group in named if group["params"]], **options)
        if foreach and not optimizer.defaults.get("fused"):
            for group in optimizer.param_groups:
                if "foreach" in group and group["foreach"] is None:
                    group["foreach"] = True
        parameters = [*groups[0], *groups[1]]
        with Tracker(iter([*parameters, *(one.grad for one in parameters)])) as tracker:
            for phase in (UPDATE_FIRST, UPDATE):
                tracker.begin(phase)
                if clip:
                    torch.nn.utils.clip_grad_norm_(parameters, clip, foreach=foreach or None)
                optimizer.step()
                if phase == UPDATE_FIRST:
                    tracker.call(STATES, tracker.living())
            return dict(tracker.to_dict())


def _states_of_8bit(outline: Any, embeddings_too: bool) -> dict[str, Any]:
    """By rule, as bitsandbytes' kernels cannot be run without storage.

    Two states of a byte for each value and two float32 for each 256 of them; of 4 bytes where a tensor has fewer than
    4,096 values, and for embeddings, as the Trainer registers them; and two maps of 256 float32 that all share.
    """
    embeddings = {
        id(one.weight) for one in outline.modules() if isinstance(one, torch.nn.Embedding) and not embeddings_too
    }
    sizes: list[int] = []
    for one in outline.parameters():
        values = one.numel()
        if not one.requires_grad:
            continue
        if values < SMALLEST_8BIT or id(one) in embeddings:
            sizes += [4 * values] * 2
        else:
            if MAP_8BIT * 4 not in sizes[:2]:
                sizes = [MAP_8BIT * 4, MAP_8BIT * 4, *sizes]
            blocks = -(-values // BLOCK_8BIT)
            sizes += [values, values, 4 * blocks, 4 * blocks]
    made = list(range(len(sizes)))
    segments = [[UPDATE_FIRST, None, 0, False, made], [UPDATE, None, 0, False, []]]
    return {"sizes": sizes, "kinds": [STATES] * len(sizes), "segments": segments}
