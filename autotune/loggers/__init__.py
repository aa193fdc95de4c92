"""A study told to the trackers that people use: one run a study, one row a trial, the answer at the end.

A backend is one small file with `start(study) -> Logger`; its library is imported there, and never torch. What goes wrong
in one is `guarded`'s to catch: no logger can lose a search.
"""

from importlib.util import find_spec
from typing import Protocol

from autotune.errors import InvalidRequest
from autotune.loggers.told import Ending, Row


class Logger(Protocol):
    """A run that was begun, or goes on. Any method may raise anything, or hang."""

    run: str
    """What `start` needs in `Study.run` to go on with the same run."""

    def log(self, row: Row) -> None:
        """Tell one trial; its number is the step."""

    def finish(self, ending: Ending) -> None:
        """Tell the answer and end the run; the same run can be gone on with later."""


def check_installed(names: tuple[str, ...]) -> None:
    """Raise InvalidRequest where the library of one of these loggers is missing."""
    for name in names:
        if find_spec(name) is None:
            raise InvalidRequest(
                f"--report-to={name} needs a library that is not installed.", f"pip install 'hf-autotune[{name}]'"
            )
