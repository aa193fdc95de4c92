"""Keeps a model off its accelerator for a while: the search needs the memory that the caller's process holds."""

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from autotune.core.units import format_bytes

State = tuple[dict[str, Any], str]
"""What an optimizer keeps of one parameter, and the name of a tensor in it."""


def states_on(place: Any, optimizer: Any) -> list[State]:
    """The optimizer's tensors that lie on this device of torch; optimizer: None where there is none.

    Others stay where they are: step counts on the CPU, and pages of bitsandbytes', which are the host's to begin with.
    """
    import torch

    kept = optimizer.state.values() if optimizer is not None else ()
    every = [(one, name, tensor) for one in kept for name, tensor in one.items()]
    return [(one, name) for one, name, tensor in every if isinstance(tensor, torch.Tensor) and tensor.device == place]


def moved(model: Any, states: Iterable[State], device: Any) -> None:
    """Move parameters, gradients and buffers of the model, and these states, to a device of torch, in place.

    The parameters stay the same objects, so that an optimizer keeps them.
    """
    model.to(device)
    for one, name in states:
        one[name] = one[name].to(device)


@contextmanager
def off_device(model: Any, optimizer: Any = None, device: str = "auto") -> Iterator[str]:
    """The model on the CPU and its device's cache empty, as long as the context lasts; then back, however it ends.

    device: on which others shall train meanwhile. Gives a note on what this process holds of it nevertheless, empty where it
    holds nothing and of a CPU. Wakes no device.
    """
    place = next((one.device for one in model.parameters()), None)
    if place is None or is_on_cpu(place):
        yield "" if device == "cpu" else held_note()
        return
    states = states_on(place, optimizer)
    try:
        moved(model, states, "cpu")
        free_cache()
        yield "" if device == "cpu" else held_note()
    finally:
        moved(model, states, place)


def is_on_cpu(place: Any) -> bool:
    """Whether this torch.device is the host's own memory."""
    return bool(place.type == "cpu")


def free_cache() -> None:
    """Give back what Python and torch keep of what is no longer used; wakes no device."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def held_note() -> str:
    """What this process still holds on its GPU, for people; empty where CUDA is asleep in it."""
    import torch

    if not torch.cuda.is_initialized():
        return ""
    held = _held_by_nvml()
    tensors = torch.cuda.memory_reserved()
    what = "its CUDA context and what else it keeps there" if held is not None else "beside its CUDA context"
    return (
        f"this process still holds {format_bytes(tensors if held is None else held)} on the device ({what}): "
        "counted as not free"
    )


def _held_by_nvml() -> int | None:
    """Bytes of this process on every GPU by the driver's account; None where it does not say (in containers)."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            found = [
                int(one.usedGpuMemory)
                for index in range(pynvml.nvmlDeviceGetCount())
                for one in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(index))
                if one.pid == os.getpid() and one.usedGpuMemory is not None
            ]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return sum(found) if found else None
