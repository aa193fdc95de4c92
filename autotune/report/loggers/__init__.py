"""A study told to the trackers that people use: one run a study, one row a trial, the answer at the end.

A backend is one small file with `start(study) -> Logger`; its library is imported there, and never torch. What goes wrong
in one is `guarded`'s to catch: no logger can lose a search.
"""

from typing import Protocol

from autotune.report.loggers.events import Ending, Row


class Logger(Protocol):
    """A run that was begun, or goes on. Any method may raise anything, or hang."""

    run: str
    """What `start` needs in `Study.run` to go on with the same run."""

    def log(self, row: Row) -> None:
        """Tell one trial; its number is the step."""

    def finish(self, ending: Ending) -> None:
        """Tell the answer and end the run; the same run can be gone on with later."""
