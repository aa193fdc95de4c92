"""Runs tapes through the allocator's model: what a training's first steps would leave it holding."""

from collections.abc import Sequence

from autotune.memory.allocator import Block, CachingAllocator
from autotune.memory.trace import FIRST, FURTHER, UPDATE, UPDATE_FIRST, MemoryTrace


def replay(
    step: MemoryTrace,
    update: MemoryTrace,
    micro_batch_size: int,
    *,
    lasting: Sequence[int],
    batch: Sequence[int],
    micro_steps: int = 1,
    keeps_gradients: bool = False,
) -> CachingAllocator:
    """The allocator after two optimizer steps of one or two micro-steps.

    lasting: bytes of what is there throughout (weights, workspace). batch: bytes of each tensor of a micro-batch.
    keeps_gradients: the second step adds to the first one's gradients.
    """
    allocator = CachingAllocator()
    for size in lasting:
        if size:
            allocator.allocate(size)
    states: dict[int, Block] = {}
    gradients: dict[int, Block] = {}
    for phase in (UPDATE_FIRST, UPDATE):
        batches = [allocator.allocate(size) for _ in range(micro_steps) for size in batch]
        for _ in range(micro_steps):
            _play(allocator, step, FURTHER if gradients else FIRST, micro_batch_size, gradients)
        _play(allocator, update, phase, micro_batch_size, states)
        if not keeps_gradients:
            for block in gradients.values():
                allocator.release(block)
            gradients = {}
        for block in batches:
            allocator.release(block)
    return allocator


def _play(allocator: CachingAllocator, tape: MemoryTrace, phase: str, size: int, alive: dict[int, Block]) -> None:
    """Run a phase of the tape; alive: tensor -> block, of what lived before and then of what lives after."""
    for event in tape.events(phase):
        if event >= 0:
            alive[event] = allocator.allocate(tape.tensors[event].bytes_at(size))
        elif ~event in alive:
            allocator.release(alive.pop(~event))
