"""The winner is rehearsed once: a few steps, one evaluation batch and one checkpoint, kept for a resumed search."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.core import Configuration, read_json, write_json
from autotune.core.failures import Failure
from autotune.core.sanity import SanityCheck, SanityProblem
from autotune.probe.order import CHILD_ANSWER

KEPT = "rehearsal.json"


def check_sanity(
    configuration: Configuration,
    attempt: Callable[[Configuration, Path], tuple[Any, Failure | None]],
    folder: Path,
) -> SanityCheck:
    """Result of a rehearsal at this configuration's settings; the result kept in this folder, if there is one.

    attempt: (configuration, folder for its files) -> the answer to a `rehearsal` order, or why there is none.
    Raises OSError if the disk refuses.
    """
    if known := kept(configuration, folder):
        return known
    answer, failure = attempt(configuration, folder)
    if failure is None:
        rehearsal = SanityCheck.from_dict(answer)
    else:
        rehearsal = SanityCheck(problems=(SanityProblem(failure.where, failure.outcome, failure.reason),))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / KEPT, {"configuration": configuration.to_dict(), "rehearsal": rehearsal.to_dict()})
    (folder / CHILD_ANSWER).unlink(missing_ok=True)
    return rehearsal


def kept(configuration: Configuration, folder: Path) -> SanityCheck | None:
    """The rehearsal of this configuration that lies in this folder; None if there is no complete one."""
    try:
        data = read_json(folder / KEPT)
        if Configuration.from_dict(data["configuration"]) != configuration:
            return None
        return SanityCheck.from_dict(data["rehearsal"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
