"""First on the path: searches of the service hurry, and real hosts' real children answer from a recording.

settings.json beside this file: `recording`; `probe_s`, seconds that a probe takes; `executed`, a file that gets a line for each
probe; `hold`, a file while which exists no probe ends; `deaf`: searches ignore signals.
"""

import json
import sys
from pathlib import Path

SETTINGS = json.loads((Path(__file__).parent / "settings.json").read_text())


def replay_in_children() -> None:
    """Be the host, without the libraries of real probes."""
    import os
    import time

    from autotune.probe.process import child, host
    from tests.recorded_host import RecordedHost

    def answer(order, objects, started, scratch):  # type: ignore[no-untyped-def]
        device = RecordedHost(Path(SETTINGS["recording"]))
        if order.kind != "probe":
            return {"value": device._value(order)}
        line = os.open(SETTINGS["executed"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(line, f"{order.folder}\n".encode())
        time.sleep(SETTINGS["probe_s"])
        while Path(SETTINGS["hold"]).exists():
            time.sleep(0.01)
        return device.probe(order).to_dict()

    child._answer = answer
    host._import_libraries = lambda: None
    host._reasons_not_to_fork = dict
    host.main()


def hurry() -> None:
    """Searches of this process measure nothing again because it was disturbed."""
    import signal

    from autotune.study import measure

    measure.REPEATS = 0
    if SETTINGS.get("deaf"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


if "autotune.probe.process.host" in sys.orig_argv:
    replay_in_children()
if "autotune.service.runner" in sys.orig_argv:
    hurry()
