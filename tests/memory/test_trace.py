"""Tapes by hand: what a step of few layers says of one with many, and of any micro-batch size."""

import pytest

from autotune.memory.envelope import peak_lines
from autotune.memory.trace import (
    ACTIVATIONS,
    FIRST,
    GRADIENTS,
    KINDS,
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


def test_five_layers_repeated_are_too_where_the_first_one_differs() -> None:
    assert repeated(layered(5, (99, 10, 10, 10, 10)), [9]) == layered(9, (99, *(10,) * 8))


def passing_on(first: int) -> MemoryTrace:
    """Each layer frees the output of the one before it."""
    tensors = tuple(Tensor(size, 0, TEMPORARY) for size in (first, 10, 10))
    events = ((0,), (1, ~0), (2, ~1))
    return MemoryTrace(tensors, tuple(Segment(FIRST, 0, place, False, item) for place, item in enumerate(events)))


def test_each_copy_frees_what_its_own_neighbour_made() -> None:
    long = repeated(passing_on(10), [5])
    assert list(long.events(FIRST)) == [0, 1, ~0, 2, ~1, 3, ~2, 4, ~3]


def test_a_neighbour_s_tensor_of_another_size_is_refused() -> None:
    with pytest.raises(NotPeriodic, match="not as large"):
        repeated(passing_on(11), [5])


def test_a_middle_layer_that_frees_what_is_no_layer_s_is_refused() -> None:
    segments = (
        Segment(FIRST, None, 0, False, (0,)),
        Segment(FIRST, 0, 0, False, ()),
        Segment(FIRST, 0, 1, False, (~0,)),
        Segment(FIRST, 0, 2, False, ()),
    )
    with pytest.raises(NotPeriodic, match="to no layer"):
        repeated(MemoryTrace((Tensor(1, 0, TEMPORARY),), segments), [4])


def test_layers_that_do_not_follow_each_other_are_refused() -> None:
    segments = tuple(Segment(FIRST, 0, layer, False, ()) for layer in (0, 2, 1))
    with pytest.raises(NotPeriodic, match="follow each other"):
        repeated(MemoryTrace((), segments), [4])


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


def test_a_line_says_what_the_bytes_are_for() -> None:
    line = max(peak_lines(layered(3))[FIRST], key=lambda item: sum(item.bytes_at(1)))
    split = dict(zip(KINDS, line.bytes_at(1), strict=True))
    assert split[ACTIVATIONS] == 3 * 12
    assert split[TEMPORARY] == 1
    assert split[GRADIENTS] == 5
