"""Constants halved and doubled by benchmarks/sensitivity.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import sensitivity
from replay import Case, Found
from sensitivity import AS_IT_IS, Variant, constants, scaled, table_of, variants, with_constant

from autotune.judge import constants as of_judge
from autotune.sampler import constants as of_sampler
from autotune.sampler import gains, policy
from autotune.space.settings import CostChange

CASE = Case("llama-192", 0.5, "physics", 0, 0.005)
FOUND = Found(CASE, 0.01, 10, 4, 1.5, 3, 0, True, None, None, None, "ended", wall=20.0)


@pytest.mark.parametrize(
    ("value", "halved", "doubled"),
    [
        (0.2, 0.1, 0.4),
        (0.75, 0.5, 0.875),
        (3, 2, 6),
        (1, 1, 2),
        (((0.0, 0.4), (0.25, 1.0)), ((0.0, 0.2), (0.125, 0.5)), ((0.0, 0.8), (0.5, 2.0))),
        ({2: 0.05}, {2: 0.025}, {2: 0.1}),
        (CostChange(0.1, 0.2, 8.0), CostChange(0.05, 0.1, 4.0), CostChange(0.2, 0.4, 16.0)),
    ],
)
def test_a_constant_is_halved_and_doubled(value: object, halved: object, doubled: object) -> None:
    assert scaled(value, 0.5) == halved
    assert scaled(value, 2.0) == doubled


def test_every_module_that_reads_a_constant_has_the_other_value_for_a_while() -> None:
    before = of_sampler.OPTIMISM
    with with_constant("OPTIMISM", 5.0):
        assert (of_sampler.OPTIMISM, policy.OPTIMISM, gains.OPTIMISM) == (5.0, 5.0, 5.0)
    assert (before, before, before) == (of_sampler.OPTIMISM, policy.OPTIMISM, gains.OPTIMISM)


def test_the_constants_are_those_of_judge_and_sampler() -> None:
    assert constants()["LOOKS"] is of_judge.LOOKS
    assert constants()["RISKS"] == of_sampler.RISKS
    assert all(name.isupper() for name in constants())


def test_what_scaling_leaves_as_it_is_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "constants", lambda: {"ONE": 1})
    assert variants(["ONE"], [CASE]) == [Variant("", AS_IT_IS, CASE), Variant("ONE", "doubled", CASE)]


def test_a_line_says_what_searches_came_to_and_how_many_differ() -> None:
    slower = Found(CASE, 0.03, 12, 5, 1.5, 3, 0, True, None, None, None, "ended", wall=30.0)
    found = {Variant("", AS_IT_IS, CASE): FOUND, Variant("RISKS", "halved", CASE): FOUND}
    lines = table_of({**found, Variant("RISKS", "doubled", CASE): slower}, ["RISKS"], [CASE])
    assert lines[-1] == "| `RISKS` | 2 | 0 | 1.00% | 10.0 | 4.0 | 1.00 | 1 | 3.00% | 12.0 | 5.0 | 1.50 |"
