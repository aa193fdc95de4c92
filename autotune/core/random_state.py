"""The random generators of the caller's process: as they were, whatever is drawn in between."""

import contextlib
import random
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave the global generators of `random`, numpy and torch (CPU and woken CUDA devices) as they are found.

    numpy and torch only where the caller has imported them: neither is loaded for this, and no device is woken.
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
        for put_back, state in restore:
            put_back(state)
