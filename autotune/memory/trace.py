"""Memory trace of a training step: tensors made and freed in order, extended to more layers and any micro-batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIRST, FURTHER, UPDATE_FIRST, UPDATE = "first", "further", "update first", "update"
"""Phases of a trace: a step's first micro-step (it makes the gradients), a further one (it adds to them), the optimizer's
first step (it makes its states) and every later one."""

WEIGHTS, GRADIENTS, STATES = "weights", "gradients", "optimizer_states"
ACTIVATIONS, TEMPORARY, COMMUNICATION = "activations", "temporary", "communication"
KINDS = (WEIGHTS, GRADIENTS, STATES, ACTIVATIONS, TEMPORARY, COMMUNICATION)
LASTING = (GRADIENTS, STATES)
"""Kinds that outlive their phase."""

TRACED_LAYERS = (3, 5)
"""Layers of a repeated list in a trace: the middle one represents all others. Five if the first and the last do more."""


class NotPeriodic(ValueError):
    """The middle layer differs from its neighbours, or frees tensors that are not a layer's."""


@dataclass(frozen=True)
class Tensor:
    """One storage: its bytes are `fixed + per_sample x micro-batch`."""

    fixed: float
    per_sample: float
    kind: str

    def bytes_at(self, micro_batch_size: float) -> float:
        return self.fixed + self.per_sample * micro_batch_size


@dataclass(frozen=True)
class Segment:
    """Successive events of one layer and pass, or outside the layers."""

    phase: str
    group: int | None  # number of the repeated list of layers
    layer: int  # place among the traced layers
    backward: bool
    events: tuple[int, ...]  # `i` when tensor i is made, `~i` when it is freed


@dataclass(frozen=True)
class MemoryTrace:
    """Tensors and events of a step."""

    tensors: tuple[Tensor, ...]
    segments: tuple[Segment, ...]

    def events(self, phase: str) -> Iterator[int]:
        """The events of one phase in order."""
        for segment in self.segments:
            if segment.phase == phase:
                yield from segment.events

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MemoryTrace":
        """The trace of `sizes` (bytes), `kinds` and `segments` ([phase, group, layer, backward, events])."""
        tensors = tuple(Tensor(size, 0, kind) for size, kind in zip(data["sizes"], data["kinds"], strict=True))
        segments = tuple(
            Segment(phase, group, layer, backward, tuple(events))
            for phase, group, layer, backward, events in data["segments"]
        )
        return cls(tensors, segments)


def between(small: MemoryTrace, small_size: int, large: MemoryTrace, large_size: int) -> MemoryTrace | None:
    """The trace for every micro-batch size, from the traces of two sizes; None if their events differ."""
    if small.segments != large.segments:
        return None
    tensors = []
    for first, second in zip(small.tensors, large.tensors, strict=True):
        slope = (second.fixed - first.fixed) / (large_size - small_size)
        tensors.append(Tensor(first.fixed - slope * small_size, slope, first.kind))
    return MemoryTrace(tuple(tensors), small.segments)


def repeated(trace: MemoryTrace, counts: Sequence[int]) -> MemoryTrace:
    """The trace of a model with these numbers of layers in the groups, from one with few: the middle one is repeated.

    Tensors of its neighbours that a layer frees, each copy frees of its neighbours. Raises NotPeriodic if a middle layer's
    tensors differ from its neighbours' in number or size, or if the layers of a group are not consecutive.
    """
    traced = 1 + max((segment.layer for segment in trace.segments if segment.group is not None), default=0)
    return _Repetition(trace, counts, traced).long() if any(count != traced for count in counts) else trace


class _Repetition:
    """Tensors of the long trace are identified by (segment of the short trace, place of its layer, rank) of their creation."""

    def __init__(self, trace: MemoryTrace, counts: Sequence[int], traced: int) -> None:
        self._short, self._counts, self._traced, self._middle = trace, counts, traced, traced // 2
        self._made: dict[int, tuple[int, int]] = {}  # tensor -> (segment, rank among the segment's new tensors)
        self._rank: list[list[int]] = []  # segment -> its new tensors in order
        self._of_layer: dict[tuple[str, int, bool, int], int] = {}
        for number, segment in enumerate(trace.segments):
            new = [event for event in segment.events if event >= 0]
            self._rank.append(new)
            self._made |= {tensor: (number, rank) for rank, tensor in enumerate(new)}
            if segment.group is not None:
                key = (segment.phase, segment.group, segment.backward, segment.layer)
                if key in self._of_layer:
                    raise NotPeriodic("a layer runs twice in one pass")
                self._of_layer[key] = number
        self._new: dict[tuple[int, int, int], int] = {}
        self._tensors: list[Tensor] = []

    def long(self) -> MemoryTrace:
        segments = tuple(self._segment(number, place) for number, place in self._order())
        return MemoryTrace(tuple(self._tensors), segments)

    def _order(self) -> Iterator[tuple[int, int]]:
        """(segment of the short trace, place of its layer) along the long trace."""
        expected: tuple[str, int | None, int, bool] | None = None
        for number, segment in enumerate(self._short.segments):
            if segment.group is None:
                if expected:
                    raise NotPeriodic("something else runs between the layers")
                yield number, 0
                continue
            step, last = (-1, 0) if segment.backward else (1, self._traced - 1)
            first = self._traced - 1 - last
            here = (segment.phase, segment.group, segment.layer, segment.backward)
            if here != (expected or (segment.phase, segment.group, first, segment.backward)):
                raise NotPeriodic("the layers do not follow each other")
            following = (segment.phase, segment.group, segment.layer + step, segment.backward)
            expected = None if segment.layer == last else following
            yield from ((number, place) for place in self._places(segment))

    def _places(self, segment: Segment) -> list[int]:
        """The places of this segment's layer in the long trace, in its order."""
        assert segment.group is not None
        beyond = self._counts[segment.group] - self._traced
        if segment.layer != self._middle:
            return [segment.layer if segment.layer < self._middle else segment.layer + beyond]
        middle = range(self._middle, self._middle + beyond + 1)
        return list(reversed(middle)) if segment.backward else list(middle)

    def _traced_at(self, place: int, count: int) -> int:
        """The traced layer that represents the one at this place."""
        beyond = count - self._traced
        return place if place < self._middle else place - beyond if place > self._middle + beyond else self._middle

    def _segment(self, number: int, place: int) -> Segment:
        segment = self._short.segments[number]
        events: list[int] = []
        frees: list[int] = []
        for event in segment.events:
            if event >= 0:
                key = (number, place, self._made[event][1])
                self._new[key] = len(self._tensors)
                events += [*sorted(frees, reverse=True), len(self._tensors)]
                frees = []
                self._tensors.append(self._short.tensors[event])
            else:
                frees += [~self._new[key] for key in self._freed(segment, place, ~event)]
        events += sorted(frees, reverse=True)
        layer = place if segment.group is not None else 0
        return Segment(segment.phase, segment.group, layer, segment.backward, tuple(events))

    def _freed(self, segment: Segment, place: int, tensor: int) -> list[tuple[int, int, int]]:
        """The tensors of the long trace that this event frees there."""
        if tensor not in self._made:
            raise NotPeriodic("a tensor is freed that was not made")
        number, rank = self._made[tensor]
        owner = self._short.segments[number]
        if owner.group is None:
            if segment.group is not None and len(self._places(segment)) > 1:
                raise NotPeriodic("a middle layer frees what belongs to no layer")
            return [(number, 0, rank)]
        if segment.group != owner.group:
            # Freed outside the layers: a tensor of the middle layer represents one of each copy.
            return [(number, copy, rank) for copy in self._places(owner)]
        count, apart = self._counts[owner.group], owner.layer - segment.layer
        there = place + apart if abs(apart) <= self._middle else self._places(owner)[0]
        if not 0 <= there < count:
            raise NotPeriodic("a layer frees a tensor of a layer that is not there")
        target = self._of_layer[owner.phase, owner.group, owner.backward, self._traced_at(there, count)]
        if rank >= len(self._rank[target]):
            raise NotPeriodic("a layer makes fewer tensors than its neighbour")
        if self._short.tensors[self._rank[target][rank]] != self._short.tensors[tensor]:
            raise NotPeriodic("a layer's tensor is not as large as its neighbour's")
        key = (target, there, rank)
        if key not in self._new:
            raise NotPeriodic("a tensor is freed before it is made")
        return [key]
