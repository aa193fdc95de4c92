"""The model of torch's caching allocator, on requests whose segments its rules tell by hand."""

import itertools
import random

import pytest

from autotune.memory.allocator import CachingAllocator, rounded, segment_size

MIB = 2**20


def test_sizes_are_rounded_up_to_512_bytes_and_segments_are_of_2_or_20_mib_or_rounded_up_to_2() -> None:
    assert [rounded(size) for size in (1, 512, 513, MIB + 1)] == [512, 512, 1024, MIB + 512]
    sizes = (MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512)
    assert [segment_size(size) // MIB for size in sizes] == [2, 20, 20, 10, 12]


FREED = {  # MiB of requests, which of them are freed, MiB of further ones; MiB that are allocated and reserved then
    "small requests share a segment of 2 MiB": ([0.5] * 4, [], [], 2, 2),
    "a further small request takes another segment": ([0.5] * 4, [], [0.5], 2.5, 4),
    "a rest of more than a MiB is split off and used": ([60], [0], [30, 30], 60, 60),
    "a rest of up to a MiB stays with its block": ([30], [0], [29], 30, 30),
    "free neighbours of a segment merge": ([5] * 4, [0, 2, 1, 3], [20], 20, 20),
    "free blocks of two segments do not merge": ([20] * 2, [0, 1], [40], 40, 80),
    "a hole between blocks in use is wasted for larger requests": ([5] * 4, [0, 2], [6], 16, 40),
    "small and large requests have pools of their own": ([20], [0], [0.5], 0.5, 22),
}


@pytest.mark.parametrize("name", FREED)
def test_what_is_freed_is_used_again(name: str) -> None:
    first, freed, further, allocated, reserved = FREED[name]
    allocator = CachingAllocator()
    blocks = [allocator.allocate(int(size * MIB)) for size in first]
    for place in freed:
        allocator.release(blocks[place])
    for size in further:
        allocator.allocate(int(size * MIB))
    assert (allocator.allocated / MIB, allocator.reserved / MIB) == (allocated, reserved)


def test_a_rest_that_nobody_used_merges_with_its_block_again() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(60 * MIB))
    allocator.release(allocator.allocate(30 * MIB))
    allocator.allocate(60 * MIB)
    assert allocator.reserved == 60 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, middle, small = (allocator.allocate(size * MIB) for size in (60, 40, 30))
    for block in (large, middle, small):
        allocator.release(block)
    assert allocator.allocate(35 * MIB) is middle
    assert allocator.reserved == 130 * MIB


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_asked_blocks_never_overlap_and_all_comes_back(seed: int) -> None:
    chance, allocator, alive = random.Random(seed), CachingAllocator(), []
    for _ in range(800):
        if alive and chance.random() < 0.48:
            allocator.release(alive.pop(chance.randrange(len(alive))))
        else:
            alive.append(allocator.allocate(chance.choice([100, 70_000, 900_000, 3 * MIB, 11 * MIB, 64 * MIB])))
        places = sorted((block.address, block.address + block.size) for block in alive)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
        assert allocator.allocated == sum(block.size for block in alive) <= allocator.reserved
    for block in alive:
        allocator.release(block)
    assert allocator.allocated == 0
