"""Before on the path: a whole search in a process of its own ends as `tests.hurry.hurry` has it."""

import sys

if "autotune.probe.host" not in sys.orig_argv:  # which starts with nothing loaded
    from autotune import confirmation, finishing, measuring

    confirmation.FURTHER = finishing.NUMERICS_MOST_S = -1.0
    measuring.REPEATS = 0
