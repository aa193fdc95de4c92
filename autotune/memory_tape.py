"""Tape: which tensors a training step makes and frees, in order, and the same for more layers and any micro-batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIRST, FURTHER, UPDATE_FIRST, UPDATE = "first", "further", "update first", "update"
"""Phases of a tape: a step's first micro-step (it makes the gradients), a further one (it adds to them), the optimizer's
first step (it makes its states) and every later one."""

WEIGHTS, GRADIENTS, STATES, ACTIVATIONS, TEMPORARY = "weights", "gradients", "optimizer_states", "activations", "temporary"
KINDS = (WEIGHTS, GRADIENTS, STATES, ACTIVATIONS, TEMPORARY)
LASTING = (GRADIENTS, STATES)
"""Kinds that outlive their phase."""

TRACED_LAYERS = 3
"""Layers of a repeated list in a trace: a first, a last and one between them that stands for all others."""


class NotPeriodic(ValueError):
    """The tape cannot be repeated: its middle layer is not like its neighbours, or holds what is not a layer's."""


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
    """A run of events that belong together.

    group: which repeated list of layers (None: none). layer: its place among the traced ones; backward: which pass.
    events: `i` where tensor i is made, `~i` where it is freed.
    """

    phase: str
    group: int | None
    layer: int
    backward: bool
    events: tuple[int, ...]


@dataclass(frozen=True)
class Tape:
    """Tensors and events of a step."""

    tensors: tuple[Tensor, ...]
    segments: tuple[Segment, ...]

    def events(self, phase: str) -> Iterator[int]:
        """The events of one phase in order."""
        for segment in self.segments:
            if segment.phase == phase:
                yield from segment.events

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Tape":
        """From `sizes` (bytes), `kinds` and `segments` ([phase, group, layer, backward, events]) of one trace."""
        tensors = tuple(Tensor(size, 0, kind) for size, kind in zip(data["sizes"], data["kinds"], strict=True))
        return cls(tensors, tuple(Segment(*head, tuple(events)) for *head, events in data["segments"]))


def between(one: Tape, one_size: int, other: Tape, other_size: int) -> Tape | None:
    """The tape for every micro-batch size, from two traces of it; None where their events differ."""
    if one.segments != other.segments:
        return None
    tensors = []
    for first, second in zip(one.tensors, other.tensors, strict=True):
        slope = (second.fixed - first.fixed) / (other_size - one_size)
        tensors.append(Tensor(first.fixed - slope * one_size, slope, first.kind))
    return Tape(tuple(tensors), one.segments)


# More layers --------------------------------------------------------------------------------------------------------


def repeated(tape: Tape, counts: Sequence[int]) -> Tape:
    """The tape of a model with so many layers in each group, from one with three: the middle one is repeated.

    What a layer frees of its neighbours, each copy frees of its own neighbours. Raises NotPeriodic where a middle layer's
    tensors are not those of its neighbours in number and size, or where the layers of a group do not follow each other.
    """
    return _Repetition(tape, counts).tape() if any(count != TRACED_LAYERS for count in counts) else tape


class _Repetition:
    """A tensor of the long tape is named by where it is made: (segment of the short tape, place of its layer, rank)."""

    def __init__(self, tape: Tape, counts: Sequence[int]) -> None:
        self._short, self._counts = tape, counts
        self._made: dict[int, tuple[int, int]] = {}  # tensor -> (segment, rank among the segment's new tensors)
        self._rank: list[list[int]] = []  # segment -> its new tensors in order
        self._of_layer: dict[tuple[str, int, bool, int], int] = {}
        for number, segment in enumerate(tape.segments):
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

    def tape(self) -> Tape:
        segments = tuple(self._segment(number, place) for number, place in self._order())
        return Tape(tuple(self._tensors), segments)

    def _order(self) -> Iterator[tuple[int, int]]:
        """(segment of the short tape, place of its layer) along the long tape."""
        expected: tuple[str, int | None, int, bool] | None = None
        for number, segment in enumerate(self._short.segments):
            if segment.group is None:
                if expected:
                    raise NotPeriodic("something else runs between the layers")
                yield number, 0
                continue
            along = range(TRACED_LAYERS - 1, -1, -1) if segment.backward else range(TRACED_LAYERS)
            here = (segment.phase, segment.group, segment.layer, segment.backward)
            if here != (expected or (segment.phase, segment.group, along[0], segment.backward)):
                raise NotPeriodic("the layers do not follow each other")
            rest = [layer for layer in along if (layer < segment.layer) == segment.backward and layer != segment.layer]
            expected = (segment.phase, segment.group, rest[0], segment.backward) if rest else None
            yield from ((number, place) for place in self._places(segment))

    def _places(self, segment: Segment) -> list[int]:
        assert segment.group is not None
        count = self._counts[segment.group]
        if segment.layer == 0:
            return [0]
        if segment.layer == TRACED_LAYERS - 1:
            return [count - 1]
        middle = range(1, count - 1)
        return list(reversed(middle)) if segment.backward else list(middle)

    def _segment(self, number: int, place: int) -> Segment:
        segment = self._short.segments[number]
        events: list[int] = []
        for event in segment.events:
            if event >= 0:
                key = (number, place, self._made[event][1])
                self._new[key] = len(self._tensors)
                events.append(len(self._tensors))
                self._tensors.append(self._short.tensors[event])
            else:
                events += [~self._new[key] for key in self._freed(segment, place, ~event)]
        layer = place if segment.group is not None else 0
        return Segment(segment.phase, segment.group, layer, segment.backward, tuple(events))

    def _freed(self, segment: Segment, place: int, tensor: int) -> list[tuple[int, int, int]]:
        """Which tensors of the long tape this free means there."""
        if tensor not in self._made:
            raise NotPeriodic("a tensor is freed that was not made")
        number, rank = self._made[tensor]
        owner = self._short.segments[number]
        if owner.group is None:
            if segment.group is not None and segment.layer == 1 and self._counts[segment.group] > TRACED_LAYERS:
                raise NotPeriodic("a middle layer frees what is no layer's")
            return [(number, 0, rank)]
        if segment.group != owner.group:
            # What is no layer's frees layers' tensors: of the middle one means of each of them.
            return [(number, one, rank) for one in sorted(self._places(owner))]
        there = place + owner.layer - segment.layer
        count = self._counts[owner.group]
        if not 0 <= there < count:
            raise NotPeriodic("a layer frees a tensor of a layer that is not there")
        layer = 0 if there == 0 else TRACED_LAYERS - 1 if there == count - 1 else 1
        target = self._of_layer[owner.phase, owner.group, owner.backward, layer]
        if rank >= len(self._rank[target]):
            raise NotPeriodic("a layer makes fewer tensors than its neighbour")
        if self._short.tensors[self._rank[target][rank]] != self._short.tensors[tensor]:
            raise NotPeriodic("a layer's tensor is not as large as its neighbour's")
        key = (target, there, rank)
        if key not in self._new:
            raise NotPeriodic("a tensor is freed before it is made")
        return [key]
