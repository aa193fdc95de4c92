"""What figures call trials and numbers."""

from autotune.report.figures.rows import MOST_NAMED, listed, memory_unit, named_trials, trial_name

from tests.makers import GIB, MIB, result
from tests.report.figures.studies import many


def test_a_trial_is_told_by_what_differs_from_the_baseline() -> None:
    facts = result()
    assert told(facts, facts.trials[1]) == "1 (best): 16 x 3, precision bf16"
    assert told(facts, facts.trials[0]).startswith("0 (baseline): 8 x 6, checkpointing none, precision fp32")
    assert told(facts, facts.trials[2]) == "2: 48 x 1"


def test_few_trials_are_all_named_the_fastest_first() -> None:
    assert [one.number for one in named(result())] == [1, 0, 2]


def test_of_many_the_best_the_baseline_and_the_front_are_named() -> None:
    facts = many(100)
    chosen = [one.number for one in named(facts)]
    assert len(chosen) == MOST_NAMED
    assert facts.best_trial
    assert {facts.best_trial.number, 0} <= set(chosen)
    speeds = [float(one.samples_per_second or 0) for one in named(facts)]
    assert speeds == sorted(speeds, reverse=True)


def test_sizes_are_told_in_the_unit_of_the_largest() -> None:
    assert memory_unit([5 * MIB, None]) == ("MiB", MIB)
    assert memory_unit([5 * MIB, 3 * GIB]) == ("GiB", GIB)
    assert memory_unit([]) == ("MiB", MIB)


def test_names_are_listed_as_people_do() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
