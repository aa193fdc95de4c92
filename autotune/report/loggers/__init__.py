"""Loggers: a study in the trackers that people use, one run a study, one row a trial, the answer at the end.

A backend is one small file with `start(study) -> Logger`; its library is imported there, and never torch. Its errors are
caught in `guarded`: no logger can lose a search.
"""

from typing import Protocol

from autotune.report.loggers.events import Ending, LoggedTrial


class Logger(Protocol):
    """A new or resumed run. Any method may raise anything, or hang."""

    run: str
    """Value that `start` needs in `StudyEvent.run` to resume the same run."""

    def log(self, row: LoggedTrial) -> None:
        """Log one trial; its number is the step."""

    def finish(self, ending: Ending) -> None:
        """Log the answer and end the run; the same run can be resumed later."""
