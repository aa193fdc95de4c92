"""State of the caller's random generators, restored afterwards."""

import contextlib
import random
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the global generators of `random`, numpy and torch (CPU and initialised CUDA devices) at the end.

    numpy and torch only if the caller has imported them: neither is loaded for this, and no device is initialised.
    """
    restore = [(random.setstate, random.getstate())]
    if numpy := sys.modules.get("numpy"):
        restore.append((numpy.random.set_state, numpy.random.get_state()))
    if torch := sys.modules.get("torch"):
        restore.append((torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_initialized():
            restore.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    try:
        yield
    finally:
        for set_state, state in restore:
            set_state(state)
