"""Child process of the service that runs one search, as the command line would.

stdin   {"run": "7", "options": {...}, "cores": [0]}, later the line `patient` or `now` to cancel it; closed: the server is gone
stdout  {"event": {"key", "kind", "body"}} ..., at last {"end": {...}}; no end if it was interrupted
stderr  a log
"""

import contextlib
import io
import json
import os
import signal
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from autotune.core import Measurement, Outcome, Trial, read_json
from autotune.core.errors import AutotuneError, DeviceInUse, DevicesAway, NothingFits, ProbeHostFailed, StudyInUse
from autotune.core.interrupt import ENDING, ending_on_signals
from autotune.core.io import file_end
from autotune.core.paths import scrubbed

if TYPE_CHECKING:
    from autotune.study.plan import Progress

INTERRUPTED = "interrupted"
"""End of a search that failed for an outside reason: it is worth another attempt."""

SIGNALS = {b"patient": signal.SIGINT, b"now": signal.SIGTERM}
"""Way of cancelling a search -> the signal that does so on the command line."""

ARCHIVED = (
    *("request.json", "result.json", "environment.json"),
    *("order.json", "measurement.json", "prospect.json", "estimated_peak.json"),
)
"""Files of a study and of its trials that `TuningResult.load` reads."""

LOG_BYTES = 2**20
"""Most bytes of a failed trial's log."""


def main() -> None:
    """Run the search that standard input orders; exit code 1 if it was interrupted."""
    started, commands = time.monotonic(), open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    events = Events(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # libraries' output belongs to the log
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a shell started it in the background
    if not (line := commands.readline()):
        sys.exit(1)
    order, cancelled = json.loads(line), threading.Event()
    events.run, options = order["run"], order["options"]
    os.sched_setaffinity(0, order["cores"])
    threading.Thread(target=_listen, args=(commands, cancelled), daemon=True).start()
    with ending_on_signals():
        end = _search({**options, "started": started}, events, cancelled)
        if end is None:
            sys.exit(1)
        for number in (signal.SIGINT, *ENDING):
            signal.signal(number, signal.SIG_IGN)
        left = {} if end["state"] == INTERRUPTED else _left(Path(options["output_dir"]) / options["study_name"], events)
        end = left | end
        texts = {name: text.replace("\0", "") for name, text in end.items() if isinstance(text, str)}
        events.send({"end": end | texts})  # PostgreSQL holds no NUL, which the last line of a crash may have


def _listen(commands: IO[bytes], cancelled: threading.Event) -> None:
    """Turn lines into signals to this process; their end means that the server is gone."""
    for line in commands:
        cancelled.set()
        os.kill(os.getpid(), SIGNALS[line.strip()])
    os.kill(os.getpid(), signal.SIGTERM)


def _search(options: dict[str, Any], events: "Events", cancelled: threading.Event) -> dict[str, Any] | None:
    """Run it; its end, None if something other than its owner interrupted it."""
    try:
        from autotune.judge.standing import Standing
        from autotune.study.plan import Progress, ProgressKind

        events.watch(Progress(ProgressKind.PREPARING, Standing(), message="reading device, model and data"))
        from autotune.commands.search import search

        search(**options, watch=events.watch)
    except KeyboardInterrupt:
        return {"state": "cancelled"} if cancelled.is_set() else None
    except Exception as error:
        kinds: dict[type, str] = dict.fromkeys((ProbeHostFailed, StudyInUse, DeviceInUse, DevicesAway), INTERRUPTED)
        kinds[NothingFits] = "nothing_fits"
        if (state := kinds.get(type(error), "failed")) == "failed":
            traceback.print_exc()
        return {"state": state, "headline": problem(error)["message"], "problem": problem(error)}
    return {"state": "done"}


def problem(error: Exception) -> dict[str, str]:
    """An error as plain data: its type in `autotune.core.errors`, message and advice."""
    message, advice = str(error) or "No further details.", "See the traceback in the search's log."
    if isinstance(error, AutotuneError):
        message, advice = error.message, error.advice
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == AutotuneError.__module__]
    kind = kinds[0] if kinds else type(error).__name__
    return {"type": kind, "message": scrubbed(message), "advice": scrubbed(advice)}


class Events:
    """The events of a search as JSON lines; each trial and each round once, also the ones of earlier runs."""

    def __init__(self, out: IO[str]) -> None:
        self.run = ""
        self._out = out
        self._sent: set[str] = set()
        self._count = 0

    def watch(self, progress: "Progress") -> None:
        """Send this event."""
        from autotune.study.plan import ProgressKind

        self.catch_up(progress)
        # A signal's handler may call for the last one.
        if progress.kind in (ProgressKind.TRIAL, ProgressKind.CONFIRMED, ProgressKind.STOPPING):
            return
        self._count += 1
        kind = "preparing" if progress.kind is ProgressKind.PREPARING else "progress"
        self._event(f"{kind}:{self.run}:{self._count}", kind, body(progress))

    def catch_up(self, progress: "Progress") -> None:
        """Send the trials and rounds that were not sent yet."""
        for trial in progress.trials:
            self._once(f"trial:{trial.number}", "trial", progress, trial, trial.measurement)
            for number, measured in zip(trial.rounds, trial.confirmations, strict=True):
                self._once(f"round:{trial.number}:{number}", "confirmed", progress, trial, measured)

    def _once(self, key: str, kind: str, progress: "Progress", trial: Trial, measured: Measurement) -> None:
        from autotune.study.plan import ProgressKind

        if key not in self._sent:
            self._event(key, kind, body(replace(progress, kind=ProgressKind(kind)), trial, measured))
            self._sent.add(key)

    def _event(self, key: str, kind: str, content: dict[str, Any]) -> None:
        self.send({"event": {"key": key, "kind": kind, "body": content}})

    def send(self, message: dict[str, Any]) -> None:
        """Write a line; nothing if nobody reads any more. A signal may have cut the line before it off."""
        with contextlib.suppress(OSError):
            self._out.write(f"\n{json.dumps(message)}\n")
            self._out.flush()


def body(progress: "Progress", trial: Trial | None = None, measured: Measurement | None = None) -> dict[str, Any]:
    """A progress as plain data without paths. trial, measured: its subject, if that has ended."""
    from autotune.core.units import finite
    from autotune.report.live.text import now_text
    from autotune.report.trial_text import outcome_text

    def speed(of: Trial | None) -> list[float | None] | None:
        rate = of.samples_per_second if of else None
        return None if rate is None else [finite(rate), finite(rate.low), finite(rate.high)]

    first, best = (progress.trials[0] if progress.trials else None), progress.best or progress.fastest
    shown = trial.configuration if trial else progress.configuration
    is_baseline = first is None or (trial is not None and trial.number == first.number)
    return {
        "kind": progress.kind,
        "objective": progress.standing.objective,
        "number": trial.number if trial else progress.number,
        "configuration": shown and shown.unlike(None if is_baseline or first is None else first.configuration),
        "sizes": shown and shown.sizes,
        "values": shown and shown.sizes_and_settings,
        "outcome": trial and trial.final.outcome.value,
        "reason": "" if trial is None or trial.feasible else scrubbed(outcome_text(trial)),
        "samples_per_second": speed(trial),
        "peak_bytes": trial and trial.peak_bytes,
        "warnings": [scrubbed(warning.text) for warning in trial.final.warnings] if trial else [],
        "best": best and best.number,
        "best_samples_per_second": speed(best),
        "best_configuration": best and best.configuration.unlike(first.configuration if first else None),
        "is_proven": progress.best is not None,
        "speedup": finite(progress.speedup_of(best)),
        "baseline_samples_per_second": speed(first),
        "probes_left": progress.probes_left,
        "seconds_left": progress.seconds_left,
        "seconds_to_go": finite(progress.seconds_to_go),
        "max_gain": finite(progress.max_gain),
        "doing": "" if trial else scrubbed(now_text(progress)),
        "message": scrubbed(progress.message),
        "disqualified": {
            f"{trial.number}": scrubbed(trial.disqualified_reason)
            for trial in progress.trials
            if trial.disqualified_reason
        },
        "measurement": measured and _scrubbed(measured.to_dict()),
    }


def _scrubbed(data: Any) -> Any:
    """Plain data without paths in its texts."""
    if isinstance(data, dict):
        return {name: _scrubbed(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_scrubbed(value) for value in data]
    return scrubbed(data) if isinstance(data, str) else data


def _left(study: Path, events: Events) -> dict[str, Any]:
    """Results of the study: headline, statement, result, and files relative to the search's folder; {} if it had not begun."""
    from autotune.commands.result import TuningResult
    from autotune.report import FILES
    from autotune.study.plan import Progress, ProgressKind

    try:
        result = TuningResult.load(study)
    except AutotuneError:
        return {}
    result_dict = {name: value for name, value in result.to_dict().items() if name != "folder"}
    events.catch_up(Progress(ProgressKind.DONE, result.standing))
    files = [f"{study.name}/{name}" for name in ("request.json", *FILES) if (study / name).exists()]
    files += _packed(study, result.trials)
    return {
        "headline": result_dict["headline"],
        "statement": result_dict["statement"],
        "result": result_dict,
        "files": files,
    }


def _packed(study: Path, trials: Sequence[Trial]) -> list[str]:
    """Write the logs of failed trials, and the measurements as an archive that `TuningResult.load` reads; their names."""
    folder = study.parent / "artifacts"
    folder.mkdir(exist_ok=True)
    for trial in trials:
        log = study / "probes" / f"{trial.number:04d}" / "log.txt"
        if trial.measurement.outcome is not Outcome.COMPLETED and log.exists():
            end = file_end(log, LOG_BYTES).decode(errors="replace")
            (folder / f"trial-{trial.number}.log").write_text(scrubbed(end), encoding="utf-8")
    with tarfile.open(folder / "study.tar.gz", "w:gz") as archive:
        for path in sorted(path for name in ARCHIVED for path in study.rglob(name)):
            data = read_json(path)
            if path.name == "order.json":  # all else of it belongs to this machine
                data = {"configuration": data["configuration"]}
            content = json.dumps({name: value for name, value in data.items() if name != "log_tail"}).encode()
            entry = tarfile.TarInfo(str(path.relative_to(study)))
            entry.size, entry.mtime = len(content), path.stat().st_mtime
            archive.addfile(entry, io.BytesIO(content))
    return [str(path.relative_to(study.parent)) for path in sorted(folder.iterdir())]


if __name__ == "__main__":
    main()
