"""Whole searches of random worlds, in virtual time: each one ends, for a reason that fits, and did nothing twice or too late."""

from pathlib import Path

import pytest

from tests.study.simulated import World, check_again, searched


@pytest.mark.parametrize("seed", [1, 2, 3, 711, 717, 736, 752, 763, 767])
def test_a_search_of_a_random_world_ends_and_does_nothing_twice_or_too_late(tmp_path: Path, seed: int) -> None:
    world = World(seed)
    _, end = searched(world, tmp_path)
    check_again(world, tmp_path, end)
