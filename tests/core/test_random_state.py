"""The caller's random generators are left as they were."""

import random

import numpy as np
import pytest
import torch

from autotune.core.random_state import kept_random_state


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@kept_random_state()
def draws_and_ends(error: BaseException) -> None:
    drawn()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    raise error


def test_what_is_drawn_within_is_drawn_again_afterwards_however_it_ends() -> None:
    with kept_random_state():
        first = drawn()
    with pytest.raises(KeyboardInterrupt):
        draws_and_ends(KeyboardInterrupt())
    assert drawn() == first
