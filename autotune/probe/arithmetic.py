"""Counts what a micro-step computes: floating-point operations, and kernels, on tensors without storage."""

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers.initialization import no_init_weights

from autotune.probe import models
from autotune.probe.layers import Repeats
from autotune.workload import Workload


def count_arithmetic(workload: Workload, config: Any, sample: Mapping[str, Any], repeats: Repeats) -> dict[str, float]:
    """{"flops": of one sample's forward and backward, "kernels": operators called in them, of any batch}.

    Of a model whose layers repeat, one and two are counted and the rest added in a straight line; lists of different
    lengths are taken as of their mean length each. Raises whatever tracing the model raises.
    """
    if not repeats.places:
        return _counted(workload, config, sample)
    one, two = (_counted(workload, repeats.config(config, layers), sample) for layers in (1, 2))
    more = sum(repeats.counts) / len(repeats.counts) - 1
    return {name: one[name] + more * (two[name] - one[name]) for name in one}


def _counted(workload: Workload, config: Any, sample: Mapping[str, Any]) -> dict[str, float]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        with no_init_weights():
            model = models.build_model(workload, config)
        batch = {name: torch.empty((1, *one.shape), dtype=one.dtype) for name, one in sample.items()}
        calls, flops = _Calls(), FlopCounterMode(display=False)
        with flops, calls:
            model(**batch).loss.backward()
    return {"flops": float(flops.get_total_flops()), "kernels": float(calls.count)}


class _Calls(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Counts operators that compute; views and allocations are no kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and not func.name().startswith(("aten::empty", "aten::detach"))
        return func(*args, **(kwargs or {}))
