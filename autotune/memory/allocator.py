"""Model of torch's caching allocator on CUDA: what it reserves of the device for a sequence of requests."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from autotune.memory.trace import FIRST, FURTHER, UPDATE, UPDATE_FIRST, MemoryTrace

MIN_BLOCK = 512
SMALL_SIZE, SMALL_SEGMENT = 1 << 20, 2 << 20
LARGE_SEGMENT, MIN_LARGE, ROUND_LARGE = 20 << 20, 10 << 20, 2 << 20
"""torch's kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc and kRoundLarge of
`c10/core/AllocatorConfig.h` and `c10/cuda/CUDACachingAllocator.cpp`, at its default settings."""


def rounded(size: float) -> int:
    """Bytes of a block for this number of bytes: a positive multiple of 512 (`round_size`)."""
    return max(MIN_BLOCK, -(-int(size) // MIN_BLOCK) * MIN_BLOCK)


def segment_size(size: int) -> int:
    """Bytes requested from the device if no free block is large enough (`get_allocation_size`); size: rounded."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE


class Block:
    """A piece of a segment, and its neighbours in it."""

    __slots__ = ("address", "after", "before", "free", "size", "small")

    def __init__(self, address: int, size: int, small: bool) -> None:
        self.address, self.size, self.small, self.free = address, size, small, False
        self.before: Block | None = None
        self.after: Block | None = None


class CachingAllocator:
    """One stream of one device; segments are never returned, as while nothing runs out of memory.

    reserved, allocated: bytes of segments, and of blocks in use, as `memory_reserved` and `memory_allocated` count them.
    """

    def __init__(self) -> None:
        self.reserved = self.allocated = self.peak_reserved = self.peak_allocated = 0
        self._free: tuple[list[tuple[int, int, Block]], list[tuple[int, int, Block]]] = ([], [])
        self._end = 0

    def allocate(self, size: float) -> Block:
        """A block for this number of bytes: the smallest free one that is large enough, else one of a new segment."""
        size = rounded(size)
        small = size <= SMALL_SIZE
        pool = self._free[small]
        index = bisect_left(pool, (size, -1))  # never compares the blocks: addresses differ
        if index < len(pool):
            block = pool.pop(index)[2]
        else:
            segment = segment_size(size)
            block = Block(self._end, segment, small)
            self._end += segment + ROUND_LARGE  # segments do not touch: blocks of two never merge
            self.reserved += segment
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        rest = block.size - size
        if rest >= MIN_BLOCK if small else rest > SMALL_SIZE:  # `should_split`
            self._split(block, size)
        block.free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Give a block back: it merges with free neighbours of its segment (`free_block`)."""
        self.allocated -= block.size
        pool = self._free[block.small]
        if block.before is not None and block.before.free:
            self._take(pool, block.before)
            self._merge(block.before, block)
            block = block.before
        if block.after is not None and block.after.free:
            self._take(pool, block.after)
            self._merge(block, block.after)
        block.free = True
        insort(pool, (block.size, block.address, block))

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.small)
        rest.before, rest.after, rest.free = block, block.after, True
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        insort(self._free[block.small], (rest.size, rest.address, rest))

    @staticmethod
    def _take(pool: list[tuple[int, int, Block]], block: Block) -> None:
        del pool[bisect_left(pool, (block.size, block.address))]

    @staticmethod
    def _merge(first: Block, second: Block) -> None:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first


def replay(
    step: MemoryTrace,
    update: MemoryTrace,
    micro_batch_size: int,
    *,
    lasting: Sequence[float],
    batch: Sequence[int],
    micro_steps: int = 1,
    keeps_gradients: bool = False,
) -> CachingAllocator:
    """The allocator after two optimizer steps of one or two micro-steps.

    lasting: bytes of what is live throughout (weights, workspace). batch: bytes of each tensor of a micro-batch.
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


def _play(allocator: CachingAllocator, trace: MemoryTrace, phase: str, size: int, live: dict[int, Block]) -> None:
    """Run a phase of the trace; live: tensor -> block, before and after."""
    for event in trace.events(phase):
        if event >= 0:
            live[event] = allocator.allocate(trace.tensors[event].bytes_at(size))
        elif ~event in live:
            allocator.release(live.pop(~event))
