"""First on the path: searches of the process hurry as `tests.hurry.hurry` has it. With AUTOTUNE_RECORDED in the environment
they ask a RecordedHost with that file."""

import os
import sys
from functools import partial
from pathlib import Path

# The processes of probes start with nothing loaded.
if not {"autotune.probe.process.host", "autotune.probe.process.supervisor"} & {*sys.orig_argv}:
    if recording := os.environ.get("AUTOTUNE_RECORDED"):
        from autotune.executors import local  # noqa: F401  (its hosts are real)
        from autotune.probe.process import launcher

        sys.path.append(str(Path(__file__).parents[2]))  # last: autotune may be installed elsewhere
        from tests.recorded_host import RecordedHost

        launcher.HostSet = partial(RecordedHost, Path(recording))  # type: ignore[assignment,misc]

    from autotune.study import measure

    measure.REPEATS = 0
