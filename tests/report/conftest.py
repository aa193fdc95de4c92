"""Pages that several tests read."""

import pytest

from autotune.report.html import page
from autotune.study.result import SearchResult
from tests.report.studies import hostile, large


@pytest.fixture(scope="session")
def large_facts() -> SearchResult:
    """Of 500 trials."""
    return large()


@pytest.fixture(scope="session")
def hostile_page() -> str:
    """Of a study that is full of markup."""
    return page(hostile())
