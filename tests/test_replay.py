"""Searches replayed on recorded tables: a slice of the benchmark that fails when the sampler gets worse."""

import sys
from pathlib import Path
from statistics import fmean, median

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import policy
from replay import Case, Found, one_search

SHARES = (0.5, 0.75)
NOISE = 0.02


def searches(sampler: str) -> list[Found]:
    return [one_search(Case(name, share, sampler, 0, NOISE)) for name in ("encoder", "decoder") for share in SHARES]


@pytest.fixture(scope="module")
def ours() -> list[Found]:
    return searches("physics")


@pytest.mark.nightly
def test_ours_runs_out_of_memory_less_than_tpe_and_needs_fewer_probes(ours: list[Found]) -> None:
    tpe = searches("tpe")
    assert sum(our.out_of_memory for our in ours) < sum(item.out_of_memory for item in tpe)
    assert sum(our.probes for our in ours) < sum(item.probes for item in tpe)


def test_ours_is_as_good_as_it_was(ours: list[Found]) -> None:
    """Bars a little above what these searches came to."""
    assert fmean(our.regret for our in ours) <= 0.005
    assert max(our.regret for our in ours) <= 0.02
    assert not any(our.out_of_memory for our in ours)
    assert median(our.to_one for our in ours) <= 8
    assert all(our.probes <= 20 for our in ours)


def test_what_the_end_says_is_true(ours: list[Found]) -> None:
    for our in ours:
        assert our.bound is not None, our.stop_reason
        assert our.open_share <= our.bound, our.stop_reason


def test_the_policy_alone_answers_as_the_whole_search_does() -> None:
    alone, whole = (policy.found(policy.Case(code, "encoder", 0.5, 0, 0.005)) for code in ("policy", "today"))
    for end in (alone, whole):
        assert end.regret <= 0.01
        assert end.low is not None
        assert end.high is not None
        assert end.truth is not None
        assert 1 < end.low <= end.truth <= end.high
    assert alone.answer == whole.answer
    assert abs(alone.jobs - whole.jobs) <= 4, "and what the answer still lacks"
