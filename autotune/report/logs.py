"""What trials that did not complete wrote last, fit to be shown to others."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from autotune.core.measurement import Outcome
from autotune.core.paths import scrubbed
from autotune.core.trial import Trial
from autotune.probe.order import LOG
from autotune.study.store import probe_folder

LINES, LETTERS = 40, 4000
"""What is kept of the end of a log."""


def log_tails(trials: Sequence[Trial], folder: Path | None) -> dict[int, str]:
    """Trial number -> the end of its log, of those that did not complete and left one.

    folder: the study's, where logs lie that are no longer in memory. Of absolute paths the last part is left, and tokens are
    masked: a report is handed on.
    """
    known = {trial.number: _tail(trial, folder) for trial in trials if trial.final.outcome is not Outcome.COMPLETED}
    return {number: shown for number, text in known.items() if (shown := _fit_to_show(text))}


def _tail(trial: Trial, folder: Path | None) -> str:
    if trial.final.log_tail or folder is None:
        return trial.final.log_tail
    failed = next((place for place, one in enumerate(trial.confirmations, 1) if not one.feasible), 0)
    with contextlib.suppress(OSError), (probe_folder(folder, trial.number, failed) / LOG).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - LETTERS))
        return file.read().decode(errors="replace")
    return ""


def _fit_to_show(text: str) -> str:
    cut = len(text.encode()) >= LETTERS  # its first line is a part of one, and may be the end of a path
    whole = text[-LETTERS:].partition("\n")[2] if cut else text
    kept = "\n".join(whole.strip().splitlines()[-LINES:])
    return scrubbed(kept)
