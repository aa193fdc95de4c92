"""Errors that autotune raises on purpose, each with advice and an exit code, and its warnings; public in `autotune.errors`.

AutotuneError              1    something failed
├── InvalidRequest         2    the request cannot be carried out as it is
│   ├── InvalidSpace       2    a search-space file is wrong: file, line, nearest valid word
│   └── StudyMismatch      2    the study of that name belongs to another request
├── NothingFits            3    no configuration fits the device under the limit
├── StudyInUse             1    another process holds the study's folder
├── StorageFailed          1    the report folder cannot be written
├── ProbeHostFailed        1    the process that starts probes died or refuses to fork
├── TracingFailed          1    the memory of a model cannot be estimated
├── ServerFailed           1    a server of `autotune serve` cannot be reached, or cannot answer now
├── TimeIsOver             1    the time limit ended before the baseline was measured
└── SearchFailed           1    the baseline crashed, a crash repeated itself, or no trial completed
    ├── DeviceInUse        1    another search holds the GPU
    └── DevicesAway        1    all devices were lost; a cluster does not answer, or has too few free devices now
"""

import sys
from collections.abc import Iterable
from difflib import get_close_matches

NEEDS_LINUX = (
    f"autotune trains on Linux only, and this is {sys.platform}: use WSL 2 on Windows, or a server"
    " (autotune search --server URL, autotune.connect). autotune compare works here."
)


class AutotuneError(Exception):
    """Base of all errors: a message, and advice; and the option that is wrong, if it is one.

    `str(error)` is one line: the message, then the advice. The message begins with the option, under its name in Python; the
    command line shows its flag. Other options are named as on the command line: `--fresh` is `fresh=True` in Python.
    """

    exit_code = 1

    def __init__(self, message: str, advice: str = "", option: str = "") -> None:
        super().__init__(message, advice, option)

    @property
    def message(self) -> str:
        """The message, which begins with the option that is wrong, if it is one."""
        return self.message_of(self.option)

    @property
    def advice(self) -> str:
        """The advice; may be empty."""
        return str(self.args[1])

    @property
    def option(self) -> str:
        """Name in Python of the option that is wrong; empty if it is none."""
        return str(self.args[2])

    def message_of(self, option: str) -> str:
        """The message, with this name of the option."""
        return f"{option}: {self.args[0]}" if option else str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows in place of a traceback: autotune's internals help nobody."""
        return [f"{type(self).__name__}: {self}"]


class InvalidRequest(AutotuneError):
    """The request cannot be carried out as it is (exit code 2)."""

    exit_code = 2


class InvalidSpace(InvalidRequest):
    """A search-space file is wrong; the message names file and line."""


class StudyMismatch(InvalidRequest):
    """A study of this name exists and belongs to another request; the message shows the difference."""


class NothingFits(AutotuneError):
    """No configuration fits the device under the limit (exit code 3)."""

    exit_code = 3


class StudyInUse(AutotuneError):
    """Another process holds the study's folder."""


class StorageFailed(AutotuneError):
    """The report folder cannot be written: read-only, full, or gone."""


class ProbeHostFailed(AutotuneError):
    """The process that starts probes could not start, died, or refuses to fork."""


class TracingFailed(AutotuneError):
    """The memory of a model cannot be estimated: its step cannot be traced."""


class ServerFailed(AutotuneError):
    """A server of `autotune serve` cannot be reached, or cannot answer now."""


class TimeIsOver(AutotuneError):
    """The time limit of --timeout ended before the baseline was measured."""


class SearchFailed(AutotuneError):
    """The baseline crashed, a crash repeated itself, or no trial completed for another reason than memory."""


class DeviceInUse(SearchFailed):
    """Another search holds the GPU."""


class DevicesAway(SearchFailed):
    """All devices of a search were lost; or a cluster does not answer, or has too few free devices now."""


class LossWarning(UserWarning):
    """The recommended configuration does not train like fp32, or its losses could not be compared."""


class UnreadableFile(UserWarning):
    """A file of a study cannot be read, and its content is left out."""


class NotApplied(UserWarning):
    """A part of the answer that a built Trainer or a running process cannot take: follow the message's advice."""


class BatchSizeChanged(UserWarning):
    """The Trainer's arguments have another global batch size than the search."""


class PromiseMissed(UserWarning):
    """A real training is slower than the search promised; the message names likely reasons."""


for _kind in [kind for kind in vars().values() if isinstance(kind, type) and issubclass(kind, Exception)]:
    _kind.__module__ = "autotune.errors"  # the module from which they are imported, also in tracebacks and documents


FEW = 30
"""Choices up to which all of them are listed."""


def nearest_choice(word: object, choices: Iterable[object]) -> str:
    """`Did you mean 'bf16'?` for a misspelt word; empty if nothing is like it."""
    close = get_close_matches(str(word), map(str, choices), n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else ""


def did_you_mean(word: object, choices: Iterable[object]) -> str:
    """Advice for a misspelt word: the nearest choice, and all of them if they are few."""
    words = list(dict.fromkeys(map(str, choices)))
    if not words:
        return "Nothing of that kind is known."
    nearest = nearest_choice(word, words)
    if len(words) > FEW:
        return nearest or f"Choose one of: {', '.join(words[:FEW])}, …"
    return f"{nearest} Choose one of: {', '.join(words)}.".strip()
