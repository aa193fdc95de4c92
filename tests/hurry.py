"""Whole searches of which a test asks that they work, not how well they measure: no rounds beyond the needed ones, no
losses to compare, and nothing is measured again because another test disturbed it."""

import os
from pathlib import Path

import pytest

from autotune.study import confirm, finish, measure
from tests.conftest import RECORDED

ROOT = Path(__file__).parents[1]


def hurry(patch: pytest.MonkeyPatch) -> None:
    """In this process."""
    patch.setattr(confirm, "FURTHER", -1.0)
    patch.setattr(finish, "NUMERICS_MOST_S", -1.0)
    patch.setattr(measure, "REPEATS", 0)


def hurried(checkout: Path = ROOT, recorded: bool = False) -> dict[str, str]:
    """The environment of a process that starts in any folder, with the project of this checkout.

    recorded: its searches ask a RecordedHost instead of starting a host.
    """
    known = os.environ | {"PYTHONPATH": f"{ROOT / 'tests' / 'hurried'}{os.pathsep}{checkout}"}
    return known | {"AUTOTUNE_RECORDED": str(RECORDED)} if recorded else known
