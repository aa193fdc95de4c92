"""Ends of the logs of trials that did not complete, without paths and tokens."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from autotune.core import Outcome, Trial
from autotune.core.io import file_end
from autotune.core.paths import scrubbed
from autotune.core.slot import Slot
from autotune.probe.order import LOG
from autotune.study.store import probe_folder

LINES, BYTES = 40, 4000
"""Of a log's end, at most."""


def log_tails(trials: Sequence[Trial], folder: Path | None) -> dict[int, str]:
    """Trial number -> the end of its log, of those that did not complete and left one.

    folder: the study's, for logs that are no longer in memory. Of absolute paths the last part is left, and tokens are
    masked: reports are handed on.
    """
    logs = {trial.number: _tail(trial, folder) for trial in trials if trial.final.outcome is not Outcome.COMPLETED}
    return {number: tail for number, log in logs.items() if (tail := _scrubbed_end(log))}


def _tail(trial: Trial, folder: Path | None) -> str:
    if trial.final.log_tail or folder is None:
        return trial.final.log_tail
    rounds = zip(trial.rounds, trial.confirmations, strict=True)
    failed = next((number for number, measured in rounds if not measured.feasible), 0)
    with contextlib.suppress(OSError):
        return file_end(probe_folder(folder, Slot(trial.number, failed)) / LOG, BYTES).decode(errors="replace")
    return ""


def _scrubbed_end(log: str) -> str:
    is_cut = len(log.encode()) >= BYTES  # then its first line is a part of one, and may be the end of a path
    text = log[-BYTES:].partition("\n")[2] if is_cut else log
    return scrubbed("\n".join(text.strip().splitlines()[-LINES:]))
