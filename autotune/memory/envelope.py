"""Upper envelope of a trace: few straight lines in the micro-batch size; the largest is the peak at any size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.memory.allocator import rounded
from autotune.memory.trace import KINDS, MemoryTrace, Tensor


@dataclass(frozen=True)
class Line:
    """Live bytes at one moment, of each of `KINDS`: `fixed + per_sample x micro-batch`."""

    fixed: tuple[float, ...]
    per_sample: tuple[float, ...]

    def bytes_at(self, micro_batch_size: float) -> tuple[float, ...]:
        pairs = zip(self.fixed, self.per_sample, strict=True)
        return tuple(fixed + slope * micro_batch_size for fixed, slope in pairs)


NOTHING = Line((0.0,) * len(KINDS), (0.0,) * len(KINDS))


def in_blocks(trace: MemoryTrace) -> MemoryTrace:
    """The trace with tensors of fixed size rounded up to the allocator's 512 bytes."""
    blocks = {
        tensor: tensor if tensor.per_sample else Tensor(rounded(tensor.fixed), 0, tensor.kind)
        for tensor in dict.fromkeys(trace.tensors)
    }
    return MemoryTrace(tuple(blocks[tensor] for tensor in trace.tensors), trace.segments)


def peak_lines(trace: MemoryTrace) -> dict[str, tuple[Line, ...]]:
    """Phase -> the lines of its moments that can be the peak at some micro-batch size from one on."""
    candidates = {phase: _highest(points) for phase, points in _moments(trace).items()}
    wanted = {moment: phase for phase, moments in candidates.items() for moment in moments}
    lines: dict[str, list[Line]] = {phase: [] for phase in candidates}
    fixed, slopes = [0.0] * len(KINDS), [0.0] * len(KINDS)
    place = {kind: number for number, kind in enumerate(KINDS)}
    moment = 0
    for segment in trace.segments:
        for event in segment.events:
            sign, tensor = (1, trace.tensors[event]) if event >= 0 else (-1, trace.tensors[~event])
            fixed[place[tensor.kind]] += sign * tensor.fixed
            slopes[place[tensor.kind]] += sign * tensor.per_sample
            if moment in wanted:
                lines[wanted[moment]].append(Line(tuple(fixed), tuple(slopes)))
            moment += 1
    return {phase: tuple(moments) or (NOTHING,) for phase, moments in lines.items()}


def _moments(trace: MemoryTrace) -> dict[str, list[tuple[float, float, int]]]:
    """Phase -> (fixed bytes, bytes per sample, moment) at its start and wherever something was made."""
    points: dict[str, list[tuple[float, float, int]]] = {}
    fixed = slope = 0.0
    moment = 0
    for segment in trace.segments:
        of_phase = points.setdefault(segment.phase, [])
        for event in segment.events:
            sign, tensor = (1, trace.tensors[event]) if event >= 0 else (-1, trace.tensors[~event])
            fixed += sign * tensor.fixed
            slope += sign * tensor.per_sample
            if event >= 0:
                of_phase.append((fixed, slope, moment))
            moment += 1
    return points


def _highest(points: Iterable[tuple[float, float, int]]) -> list[int]:
    """The moments on the upper envelope of their lines, for sizes from one on (the convex hull trick)."""
    hull: list[tuple[float, float, int]] = []  # each flatter than the one before, and higher at one sample
    for fixed, slope, moment in sorted(points, key=lambda point: (-point[1], -point[0])):
        if hull and fixed + slope <= hull[-1][0] + hull[-1][1]:
            continue
        while len(hull) > 1 and _meet(hull[-2], (fixed, slope)) >= _meet(hull[-2], hull[-1]):
            hull.pop()
        hull.append((fixed, slope, moment))
    return [moment for _, _, moment in hull]


def _meet(steep: Sequence[float], flat: Sequence[float]) -> float:
    """The size below which the steeper line is below the flatter one."""
    return (flat[0] - steep[0]) / (steep[1] - flat[1])
