"""Offload of a model during a search, which needs the memory that the caller's process holds."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe.device import nvml

OptimizerState = tuple[dict[str, Any], str]
"""An optimizer's state of one parameter, and the name of a tensor in it."""


def states_on(place: Any, optimizer: Any) -> list[OptimizerState]:
    """The optimizer's tensors on this torch.device, without step counts on the CPU and pages of bitsandbytes on the host."""
    import torch

    return [
        (state, name)
        for state in (optimizer.state.values() if optimizer is not None else ())
        for name, tensor in state.items()
        if isinstance(tensor, torch.Tensor) and tensor.device == place
    ]


def moved(model: Any, states: Iterable[OptimizerState], device: Any) -> None:
    """Move the model and these states to a torch.device, in place: an optimizer keeps its parameters."""
    model.to(device)
    for state, name in states:
        state[name] = state[name].to(device)


@contextmanager
def off_device(model: Any, optimizer: Any = None, device: str = "auto") -> Iterator[ResultWarning | None]:
    """Within, the model is on the CPU and its device's cache is empty; afterwards it is moved back, however that ends.

    device: of the search. Yields a warning of memory that this process holds of a GPU nevertheless. Does not initialise CUDA.
    """
    place = next((parameter.device for parameter in model.parameters()), None)
    if place is None or place.type == "cpu":
        yield None if device == "cpu" else held_memory()
        return
    states = states_on(place, optimizer)
    try:
        moved(model, states, "cpu")
        free_cache()
        yield None if device == "cpu" else held_memory()
    finally:
        moved(model, states, place)


def free_cache() -> None:
    """Free what Python and torch cache; does not initialise CUDA."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def held_memory() -> ResultWarning | None:
    """The warning of memory that this process holds on its GPU; None if CUDA is not initialised."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    held, what = nvml.own_bytes(), "its CUDA context and other allocations"
    if held is None:
        held, what = torch.cuda.memory_reserved(), "without its CUDA context"
    return ResultWarning(WarningKind.HELD_MEMORY, {"bytes": held}, what)
