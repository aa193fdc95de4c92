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


def test_small_requests_share_a_segment_of_2_mib() -> None:
    allocator = CachingAllocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert (allocator.allocated, allocator.reserved) == (2 * MIB, 2 * MIB)
    allocator.allocate(1)
    assert (allocator.allocated, allocator.reserved) == (2 * MIB + 512, 4 * MIB)


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, middle, small = (allocator.allocate(size * MIB) for size in (60, 40, 30))
    for block in (large, middle, small):
        allocator.release(block)
    assert allocator.allocate(35 * MIB) is middle
    assert allocator.reserved == 130 * MIB


def test_a_rest_of_more_than_a_mib_is_split_off_and_used() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(30 * MIB)
    allocator.allocate(30 * MIB)
    assert (allocator.allocated, allocator.reserved) == (60 * MIB, 60 * MIB)


def test_a_rest_that_nobody_used_merges_with_its_block_again() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(60 * MIB))
    allocator.release(allocator.allocate(30 * MIB))
    allocator.allocate(60 * MIB)
    assert allocator.reserved == 60 * MIB


def test_a_rest_of_up_to_a_mib_stays_with_its_block_and_counts_as_allocated() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(30 * MIB))
    allocator.allocate(29 * MIB)
    assert allocator.allocated == 30 * MIB


def test_free_neighbours_of_a_segment_merge() -> None:
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in (parts[0], parts[2], parts[1], parts[3]):
        allocator.release(block)
    allocator.allocate(20 * MIB)
    assert (allocator.allocated, allocator.reserved) == (20 * MIB, 20 * MIB)


def test_free_blocks_of_two_segments_do_not_merge() -> None:
    allocator = CachingAllocator()
    for block in [allocator.allocate(20 * MIB) for _ in range(2)]:
        allocator.release(block)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 80 * MIB


def test_a_hole_between_blocks_in_use_is_wasted_for_larger_requests() -> None:
    allocator = CachingAllocator()
    parts = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.release(parts[0])
    allocator.release(parts[2])
    allocator.allocate(6 * MIB)
    assert allocator.reserved == 40 * MIB


def test_small_and_large_requests_have_pools_of_their_own() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(20 * MIB))
    allocator.allocate(1000)
    assert allocator.reserved == 22 * MIB


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
