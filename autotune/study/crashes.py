"""Crashes that end a search: of the baseline, or one and the same again and again."""

import contextlib
import re
from pathlib import Path

from autotune.core import Outcome, Trial
from autotune.core.errors import SearchFailed
from autotune.core.failures import relevant_end
from autotune.core.io import file_end
from autotune.core.slot import Slot
from autotune.judge.constants import SAME_CRASHES
from autotune.judge.dominance import crashing_values
from autotune.probe.order import LOG
from autotune.study.study import Study

CRASHES_THAT_END = 6
"""The same crash so many times in a row, with no value to blame, ends the search: it is the machine."""


def stop_if_it_crashes(study: Study) -> None:
    """Raise SearchFailed if the baseline crashed or the last crashes are one and the same, with no value to blame.

    Values that crash wherever they are, are only ruled out (`crashing_values`), unless nothing runs at all.
    """
    has_run = any(trial.measurement.outcome is Outcome.COMPLETED for trial in study.trials)
    most = CRASHES_THAT_END if has_run else SAME_CRASHES
    blamed = [values.items() for values, _ in crashing_values(study.trials) if len(values) == 1]
    last = study.trials[-most:]
    if study.trials and study.trials[0].measurement.outcome is Outcome.CRASHED:
        raise _crash(study, study.trials[0], "The baseline crashed")
    if len(last) < most or any(trial.measurement.outcome is not Outcome.CRASHED for trial in last):
        return
    if has_run and any(values <= trial.configuration.values.items() for trial in last for values in blamed):
        return
    if len({re.sub(r"\d+", "#", trial.measurement.reason) for trial in last}) == 1:
        raise _crash(study, last[-1], f"The same crash came {most} times in a row")


def _crash(study: Study, trial: Trial, what: str) -> SearchFailed:
    log, reason = study.probe_folder(Slot(trial.number)) / LOG, trial.measurement.reason.rstrip(".")
    tail = trial.measurement.log_tail or _end_of(log)
    last = _last_line(tail)
    # Of a process that ended by itself; an exception's reason says it all, and the log goes on after it.
    detail = "" if trial.measurement.where or last in reason or reason in last else f" ({last})"
    cause = "Fix the cause"
    if place := _place_in_model(tail):
        cause = (
            f"The model's own code raised it ({place}): compare the fields of its config and --sequence-length with it"
        )
    return SearchFailed(f"{what}: {reason}{detail}.", f"Read {log}. {cause}, then search again with --fresh.")


def _place_in_model(output: str) -> str:
    """File and line of a model of transformers that raised what ended this output; empty if something else did."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', relevant_end(output))
    file, line = frames[-1] if frames else ("", "")
    return f"{Path(file).name}, line {line}" if "transformers/models/" in file else ""


def _end_of(log: Path) -> str:
    """The end of a probe's output; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return file_end(log, 4000).decode(errors="replace")
    return ""


def _last_line(text: str) -> str:
    """The last line of a text that is not empty, as much of it as a message needs."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:300]
