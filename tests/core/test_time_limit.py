"""The time of a command: what is left, and what is cut to it."""

import math
import time

import pytest

from autotune.core.errors import TimeIsOver
from autotune.core.time_limit import CLOSING, CLOSING_S, GRACE, TimeLimit


def test_without_a_limit_everything_has_time() -> None:
    none = TimeLimit()
    assert (none.is_set, none.is_over, none.seconds_left(), none.cut(900.0)) == (False, False, math.inf, 900.0)
    none.check("it was done", 1e9)


def test_a_limit_counts_from_its_start() -> None:
    limit = TimeLimit(60.0, time.monotonic() - 40.0)
    assert 19.0 < limit.seconds_left() + CLOSING_S <= 20.0
    assert not limit.is_over
    assert limit.cut(5.0) == 5.0
    assert limit.cut(900.0) == pytest.approx(20.0 - CLOSING_S + 60 * GRACE, abs=1.0)
    short = TimeLimit(10.0)
    assert 8.5 < short.seconds_left() <= 10 * (1 - CLOSING)


def test_what_is_over_has_nothing_left_but_the_grace() -> None:
    over = TimeLimit(60.0, time.monotonic() - 100.0)
    assert (over.is_over, over.seconds_left()) == (True, 0.0)
    assert over.cut(900.0) == 60 * GRACE


def test_what_would_not_end_in_time_is_not_begun() -> None:
    limit = TimeLimit(60.0)
    limit.check("it was done", 50.0)
    with pytest.raises(TimeIsOver, match=r"ended before it was done\. .*--timeout"):
        limit.check("it was done", 61.0)
    with pytest.raises(TimeIsOver):
        TimeLimit(1.0, time.monotonic() - 2).check("it was done")
