"""Before on the path: a whole search in a process of its own ends as `tests.hurry.hurry` has it, and with AUTOTUNE_RECORDED
in the environment it asks a RecordedHost with that file instead of starting a host."""

import os
import sys
from functools import partial
from pathlib import Path

if not {"autotune.probe.process.host", "autotune.probe.process.supervisor"} & {
    *sys.orig_argv
}:  # which start with nothing loaded
    if recording := os.environ.get("AUTOTUNE_RECORDED"):
        from autotune.probe.process import launcher
        from autotune.probe.recorded import RecordedHost

        launcher.ProbeHost = partial(RecordedHost, Path(recording))  # type: ignore[assignment,misc]

    from autotune.study import confirm, finish, measure

    confirm.FURTHER = finish.NUMERICS_MOST_S = -1.0
    measure.REPEATS = 0
