"""Tapes by hand: what a step of few layers says of one with many, and of any micro-batch size."""

import pytest

from autotune.memory.envelope import peak_lines
from autotune.memory.trace import (
    ACTIVATIONS,
    FIRST,
    GRADIENTS,
    TEMPORARY,
    MemoryTrace,
    NotPeriodic,
    Segment,
    Tensor,
    between,
    repeated,
)


def layered(layers: int, sizes: tuple[int, ...] = ()) -> MemoryTrace:
    """Each layer makes an output that its own backward frees, and a gradient; a head's loss lives in between."""
    sizes = sizes or (10,) * layers
    tensors = [Tensor(size, 2, ACTIVATIONS) for size in sizes]
    loss = len(tensors)
    tensors.append(Tensor(1, 0, TEMPORARY))
    segments = [Segment(FIRST, 0, layer, False, (layer,)) for layer in range(layers)]
    segments.append(Segment(FIRST, None, 0, False, (loss,)))
    for layer in reversed(range(layers)):
        gradient = len(tensors)
        tensors.append(Tensor(5, 0, GRADIENTS))
        segments.append(Segment(FIRST, 0, layer, True, (gradient, ~layer)))
    segments.append(Segment(FIRST, None, 0, False, (~loss,)))
    return MemoryTrace(tuple(tensors), tuple(segments))


@pytest.mark.parametrize("layers", [3, 4, 12])
def test_three_layers_repeated_are_the_tape_of_many(layers: int) -> None:
    assert repeated(layered(3), [layers]) == layered(layers)
    first_differs = layered(5, (99, 10, 10, 10, 10))
    assert repeated(first_differs, [layers + 6]) == layered(layers + 6, (99, *(10,) * (layers + 5)))


def passing_on(first: int) -> MemoryTrace:
    """Each layer frees the output of the one before it."""
    tensors = tuple(Tensor(size, 0, TEMPORARY) for size in (first, 10, 10))
    events = ((0,), (1, ~0), (2, ~1))
    return MemoryTrace(tensors, tuple(Segment(FIRST, 0, place, False, item) for place, item in enumerate(events)))


def test_each_copy_frees_what_its_own_neighbour_made() -> None:
    long = repeated(passing_on(10), [5])
    assert list(long.events(FIRST)) == [0, 1, ~0, 2, ~1, 3, ~2, 4, ~3]


def of_no_layer() -> MemoryTrace:
    """A middle layer frees what is no layer's."""
    places = ((None, 0, (0,)), (0, 0, ()), (0, 1, (~0,)), (0, 2, ()))
    segments = (Segment(FIRST, unit, place, False, events) for unit, place, events in places)
    return MemoryTrace((Tensor(1, 0, TEMPORARY),), tuple(segments))


OUT_OF_ORDER = MemoryTrace((), tuple(Segment(FIRST, 0, layer, False, ()) for layer in (0, 2, 1)))


@pytest.mark.parametrize(
    ("trace", "why"),
    [(passing_on(11), "not as large"), (of_no_layer(), "to no layer"), (OUT_OF_ORDER, "follow each other")],
)
def test_layers_that_are_not_alike_are_refused(trace: MemoryTrace, why: str) -> None:
    with pytest.raises(NotPeriodic, match=why):
        repeated(trace, [4])


def at(size: int) -> MemoryTrace:
    tape = layered(3)
    return MemoryTrace(tuple(Tensor(item.bytes_at(size), 0, item.kind) for item in tape.tensors), tape.segments)


def test_two_sizes_tell_the_line_through_every_size() -> None:
    line = between(at(2), 2, at(3), 3)
    assert line == layered(3)
    assert between(at(2), 2, layered(4), 3) is None, "other events at another size"
    assert [item.bytes_at(7) for item in line.tensors] == [item.fixed for item in at(7).tensors]


def test_the_lines_hold_the_peak_at_every_size() -> None:
    # A moment with much that is fixed, one with much of each sample, one between that is never the highest.
    moments = ((100, 0), (10, 30), (20, 10), (60, 15))
    tensors = tuple(Tensor(fixed, slope, TEMPORARY) for fixed, slope in moments)
    events = tuple(event for place in range(len(moments)) for event in (place, ~place))
    lines = peak_lines(MemoryTrace(tensors, (Segment(FIRST, None, 0, False, events),)))[FIRST]
    assert len(lines) == 3
    for size in range(1, 30):
        assert max(sum(line.bytes_at(size)) for line in lines) == max(fixed + slope * size for fixed, slope in moments)
