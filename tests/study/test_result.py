"""Result of a search without an answer."""

import pytest

from autotune.core import InvalidRequest
from tests.makers import result, trial


def test_a_search_without_a_baseline_has_none_and_says_what_to_do() -> None:
    found = result([trial(1)])
    assert found.baseline_trial is None
    with pytest.raises(InvalidRequest, match="before its baseline was measured"):
        _ = found.baseline
