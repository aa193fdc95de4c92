"""Floating-point operations and kernels of a micro-step, counted on tensors without storage."""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers.initialization import no_init_weights

from autotune.core import Workload
from autotune.probe.trace.layers import Repeats
from autotune.workload.model import build
from autotune.workload.model.adapters import adapted

aten = torch.ops.aten


def attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Operations of the two products of attention's forward: queries by keys, and their result by values; all are shapes."""
    return int(2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


def attention_backward_flops(_gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Operations of the four products of its backward. Kernels recompute the scores, which does not count."""
    return 2 * attention_flops(query, key, value)


KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
ATTENTION = {
    getattr(aten, f"_scaled_dot_product_{name}{suffix}"): count
    for name in KERNELS
    for suffix, count in (("", attention_flops), ("_backward", attention_backward_flops))
}
"""Torch's counter has no CPU kernels, and counts what a GPU's recompute (`torch.utils.flop_counter`)."""


def count_arithmetic(
    workload: Workload,
    config: Any,
    sample: Mapping[str, Any],
    repeats: Repeats,
    adapter: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """{"flops": of one sample's forward and backward, "kernels": operators called in them, of any batch}.

    adapter: fields of PEFT's `LoraConfig` if it is trained instead of the weights. Causal attention is counted whole. Of
    repeated layers one and two are counted and the rest extrapolated, lists of different lengths by their mean length.
    Raises whatever tracing the model raises.
    """
    if not repeats.places:
        return _counted(workload, config, sample, adapter)
    single, double = (_counted(workload, repeats.config(config, layers), sample, adapter) for layers in (1, 2))
    more = sum(repeats.counts) / len(repeats.counts) - 1
    return {name: single[name] + more * (double[name] - single[name]) for name in single}


def _counted(
    workload: Workload, config: Any, sample: Mapping[str, Any], adapter: Mapping[str, Any] | None
) -> dict[str, float]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        with no_init_weights():
            model = adapted(build.build_model(workload, config), adapter or {})
        batch = {name: torch.empty((1, *row.shape), dtype=row.dtype) for name, row in sample.items()}
        calls, flops = _Calls(), FlopCounterMode(display=False, custom_mapping=ATTENTION)
        with flops, calls:
            model(**batch).loss.backward()
    return {"flops": float(flops.get_total_flops()), "kernels": float(calls.count)}


class _Calls(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Counts operators that compute: no views or allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and not func.name().startswith(("aten::empty", "aten::detach"))
        return func(*args, **(kwargs or {}))
