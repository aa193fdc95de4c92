"""Quick whole searches: nothing disturbed is measured again; on request without processes, answered from a
recording."""

import os
from functools import partial
from pathlib import Path

import pytest

from autotune.study import measure
from tests.conftest import RECORDED
from tests.recorded_host import RecordedHost

ROOT = Path(__file__).parents[1]
RECORDED_HOST = partial(RecordedHost, RECORDED)
"""For the argument `probes` of `search` and `tune`: answers as a real host answered for bert-mini on a CPU."""

STARTING = (
    "commands.search",
    "commands.estimate.run",
    "commands.explain.run",
    "commands.guide.run",
    "commands.verify.run",
    "probe.queries",
)
"""Modules that start hosts."""


def hurry(patch: pytest.MonkeyPatch, recorded: bool = False) -> None:
    """Hurry searches of this process. recorded: they and the other commands ask a RecordedHost."""
    patch.setattr(measure, "REPEATS", 0)
    for module in STARTING if recorded else ():
        patch.setattr(f"autotune.{module}.HostSet", RECORDED_HOST)


def hurried(checkout: Path = ROOT, recorded: bool = False) -> dict[str, str]:
    """Environment variables for a process that runs in any folder with the project of this checkout, and hurries as above."""
    variables = os.environ | {"PYTHONPATH": f"{ROOT / 'tests' / 'hurried'}{os.pathsep}{checkout}"}
    return variables | {"AUTOTUNE_RECORDED": str(RECORDED)} if recorded else variables
