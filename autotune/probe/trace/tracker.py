"""Recorder of the storages that a training step makes and frees."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.memory.trace import ACTIVATIONS, GRADIENTS, TEMPORARY, WEIGHTS

_DEVICE = torch.ops.prim.device.default


class Tracker(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that records each new storage of an operation's results, and by a weak reference its end.

    Works on real and fake tensors; does not see the workspace of a kernel. weights: existing tensors (parameters, buffers,
    batches), which have no events.
    """

    def __init__(self, weights: Iterator[torch.Tensor]) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.kinds: list[str] = []
        self.segments: list[tuple[str, int | None, int, bool, list[int]]] = []
        self._known: dict[int, Any] = {}
        self._weights: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._then: tuple[int | None, int, bool] | None = None
        self._on = True
        for tensor in weights:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage
            self._weights.add(storage._cdata)

    def begin(self, phase: str) -> None:
        """Begin a phase, outside of layers."""
        self._then = None
        self.segments.append((phase, None, 0, False, []))

    def enter(self, group: int | None, layer: int, backward: bool) -> None:
        """Begin a layer (none if group is None)."""
        self._then = None
        phase, *last, events = self.segments[-1]
        if last == [group, layer, backward]:
            return
        if not events and last[0] is None and len(self.segments) > 1 and self.segments[-2][0] == phase:
            self.segments.pop()
        self.segments.append((phase, group, layer, backward, []))

    def leave(self) -> None:
        """End the layer at the next allocation: what is freed before is still its own."""
        self._then = (None, 0, False)

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage; None for an existing one."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def call_living(self, kind: str) -> None:
        """Set the kind of all living tensors that have none yet."""
        for number in list(self._numbers.values()):
            if self.kinds[number] == TEMPORARY:
                self.kinds[number] = kind

    def to_dict(self) -> dict[str, Any]:
        """The tape as `MemoryTrace.from_dict` reads it."""
        self._on = False
        segments = [[*head, _frees_in_order(events)] for *head, events in self.segments]
        return {"sizes": self.sizes, "kinds": self.kinds, "segments": segments}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor) and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device  # as the fake mode answers: two thirds of all calls
        results = func(*args, **(kwargs or {}))
        if isinstance(results, torch.Tensor):
            self._note(results, func, args)
        elif isinstance(results, (tuple, list)):
            for result in results:
                for tensor in result if isinstance(result, (tuple, list)) else (result,):
                    if isinstance(tensor, torch.Tensor):
                        self._note(tensor, func, args)
        return results

    def _note(self, tensor: torch.Tensor, func: Any, args: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or not self._on:
            return
        size = storage.nbytes()
        if not size:
            return
        if self._then is not None:
            self.enter(*self._then)
        number = len(self.sizes)
        self.sizes.append(size)
        copied = func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self._weights
        self.kinds.append(WEIGHTS if copied else TEMPORARY)
        self.segments[-1][-1].append(number)
        self._numbers[key] = number

        def freed(_: Any) -> None:
            del self._known[key], self._numbers[key]
            if self._on:
                self.segments[-1][-1].append(~number)

        self._known[key] = weakref.ref(storage, freed)


def _frees_in_order(events: list[int]) -> list[int]:
    """Sort consecutive frees by number: autocast's cache is freed in the order of addresses."""
    ordered: list[int] = []
    frees: list[int] = []
    for event in events:
        if event < 0:
            frees.append(event)
        else:
            ordered += [*sorted(frees, reverse=True), event]
            frees = []
    return ordered + sorted(frees, reverse=True)


@contextmanager
def layers_noted(tracker: Tracker, groups: list[Any]) -> Iterator[None]:
    """Record where each layer's forward and backward begin. groups: lists of layers (`nn.ModuleList`s)."""
    handles = []
    for group, layers in enumerate(groups):
        for place, layer in enumerate(layers):
            handles.append(layer.register_forward_pre_hook(_entering(tracker, group, place)))
            handles.append(layer.register_forward_hook(_leaving(tracker, group, place, place == len(layers) - 1)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _entering(tracker: Tracker, group: int, place: int) -> Callable[..., None]:
    def hook(_: Any, inputs: tuple[Any, ...]) -> None:
        if not torch._C._current_autograd_node():  # not if a layer is computed again
            if place == 0 and (before := _first_to_learn(inputs)) is not None:
                before.register_hook(lambda grad: tracker.enter(None, 0, False))
            tracker.enter(group, place, False)

    return hook


def _leaving(tracker: Tracker, group: int, place: int, last: bool) -> Callable[..., None]:
    def hook(_: Any, __: tuple[Any, ...], output: Any) -> None:
        if torch._C._current_autograd_node():
            return
        if (after := _first_to_learn(output if isinstance(output, (tuple, list)) else (output,))) is not None:
            after.register_hook(lambda grad: tracker.enter(group, place, True))
        if last:
            tracker.leave()

    return hook


def _first_to_learn(values: Any) -> Any:
    """The first tensor that needs a gradient, if any."""
    return next((value for value in values if isinstance(value, torch.Tensor) and value.requires_grad), None)


def micro_step(tracker: Tracker, phase: str, forward: Callable[[], Any], parameters: list[Any]) -> None:
    """One micro-step as the Trainer makes it: the loss of `forward`, divided by the accumulation, and its backward."""
    tracker.begin(phase)
    loss = _loss(forward)
    tracker.call_living(ACTIVATIONS)
    loss = loss / 2
    loss.backward()
    del loss
    for number in [tracker.number(weight.grad) for weight in parameters if weight.grad is not None]:
        if number is not None:
            tracker.kinds[number] = GRADIENTS


def _loss(forward: Callable[[], Any]) -> Any:
    """A function of its own, so that all other outputs are freed before the backward."""
    outputs = forward()
    return outputs["loss"] if isinstance(outputs, dict) else outputs[0]
