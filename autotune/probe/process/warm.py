"""A warm child: a process that goes on to the next order after a completed one, as a fresh process would begin with it.

fork --> order, answer --> all of it is dropped, the process is put back --> waits --> next order, ... --> the host ends it
                           is anything left? then it ends

The model is built anew for each order, with the random numbers of a fresh process: nothing of a training's state (hooks,
autocast, gradients, weights) can reach the next one. What stays is what takes a process long to get: its libraries, the
device's context and its loaded kernels.
"""

import contextlib
import gc
import os
import random
import threading
from collections.abc import Mapping
from typing import Any

import psutil

from autotune.core import Outcome
from autotune.probe.order import Order
from autotune.space.settings import SETTINGS

MOST_BEFORE = 9
"""Orders that a process has carried out, at most, when it begins with another one: ten in all."""

TRUSTED = 0.8
"""Share of the allowed memory up to which a peak in a warm child counts: its allocator may be left in pieces."""

LEFT_BYTES = 1 << 20
"""Bytes of tensors that an order may leave in its process: libraries keep small tables."""

_SAME = (
    *("kind", "workload", "environment", "model_arguments", "adapter", "switches", "allowed_bytes", "count_tokens"),
    *("process_environment", "host_environment", "request"),
)
"""Fields of two orders that one process may carry out one after the other: they are the same in both."""


def may_follow(order: Order, before: Order) -> bool:
    """True if a process that has completed `before` may carry this order out.

    Both with a model that autotune builds, in one process, and with values that differ in settings `of_trainer` alone: code
    of the user's may keep anything, and other settings change the process itself.
    """
    own, other = order.configuration, before.configuration
    if own is None or other is None or not may_go_on(order):
        return False
    values = other.values
    differing = [name for name, value in own.values.items() if values.get(name) != value]
    is_same = all(getattr(order, name) == getattr(before, name) for name in _SAME)
    return is_same and own.values.keys() == values.keys() and all(SETTINGS[name].of_trainer for name in differing)


def may_go_on(order: Order) -> bool:
    """True if the process of this order may carry out another one, should this one complete."""
    workload = order.workload
    is_ours = workload is not None and not workload.user_objects and not workload.trust_remote_code
    return order.kind == "probe" and is_ours and order.ranks == 1


def is_completed(answer: Mapping[str, Any]) -> bool:
    """True if this measurement's process met nothing that it could have broken at."""
    return answer.get("outcome") == Outcome.COMPLETED and not answer.get("allocator_retries")


class ProcessState:
    """State of a process before its first order, to which `restore` brings it back."""

    def __init__(self) -> None:
        import numpy as np
        import torch

        self._environment = dict(os.environ)
        self._random, self._numpy, self._seed = random.getstate(), np.random.get_state(), torch.initial_seed()
        self._threads, self._fp32 = torch.get_num_threads(), torch.backends.fp32_precision
        self._facts, self._held = _facts(), _tensor_bytes()

    def restore(self) -> str:
        """Put back what the last order changed: the reason why something of it is left, empty if nothing is."""
        import numpy as np
        import torch
        from accelerate.state import AcceleratorState, GradientState
        from transformers.utils import import_utils

        os.environ.clear()
        os.environ |= self._environment
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        # It remembers what it has set: a value that another one replaced meanwhile would not be set again.
        import_utils.enable_tf32.cache_clear()
        torch.backends.fp32_precision = self._fp32
        torch.set_num_threads(self._threads)
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()  # else each keeps a block of the memory that is given back
            torch.cuda.empty_cache()
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        torch.manual_seed(self._seed)
        return self._left()

    def _left(self) -> str:
        import torch

        from autotune.probe.device.compile import graphs_compiled

        changed = [name for name, value in _facts().items() if value != self._facts[name]]
        on_device = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
        tensors = max(_tensor_bytes() - self._held, on_device)
        reasons = {
            f"{', '.join(changed)} changed": bool(changed),
            "graphs were compiled": bool(graphs_compiled()),
            "processes run": bool(psutil.Process().children()),
            "a process group is there": torch.distributed.is_available() and torch.distributed.is_initialized(),
            f"{tensors} bytes of tensors are left": tensors > LEFT_BYTES,
        }
        return "; ".join(reason for reason, is_left in reasons.items() if is_left)


def _facts() -> dict[str, Any]:
    """State of this process that all its trainings share, by name."""
    import torch

    kernels, matmul = torch.backends.cuda, (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    names = [name for name in vars(torch.nn.modules.module) if name.startswith("_global_") and name.endswith("_hooks")]
    return {
        "hooks of all modules": [len(getattr(torch.nn.modules.module, name)) for name in names],
        "Python's threads": threading.active_count(),
        "the default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "determinism": (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic),
        "the choice of convolutions": torch.backends.cudnn.benchmark,
        "attention's kernels": [
            getattr(kernels, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math", "cudnn")
        ],
        "float32's products": [torch.backends.fp32_precision, *(each.fp32_precision for each in matmul)],
    }


def _tensor_bytes() -> int:
    """Bytes of all tensors that Python holds in the host's memory, or may hold elsewhere."""
    import torch

    held: dict[int, int] = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):  # isinstance would open libraries that pretend to be loaded
            with contextlib.suppress(Exception):  # a tensor without storage
                held[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
    return sum(held.values())
