"""Names and units of trials in figures, and rows of bars whose parts add up."""

import pytest

from autotune.report.figures.canvas import Drawing, figure_style, page_svg
from autotune.report.figures.rows import (
    LINES,
    MOST_NAMED,
    memory_unit,
    named_trials,
    rows_of,
    stacked,
    trial_name,
)
from tests.makers import GIB, MIB, result
from tests.report.figures.studies import many, texts


def test_long_names_take_more_lines_and_push_what_is_below() -> None:
    short, long, endless = rows_of(["short", "word " * 20, "word " * 200])
    assert (len(short.lines), len(long.lines), len(endless.lines)) == (1, 2, LINES)
    assert long.top == short.bottom
    assert endless.top == long.bottom
    assert endless.lines[-1].endswith("…")


def test_parts_follow_each_other_and_empty_ones_are_not_named() -> None:
    with figure_style():
        figure = stacked(
            ["one", "two"], [{"a": 1.0, "b": 2.0, "c": 0}, {"a": 3.0, "b": 0, "c": 0}], "things", ["3", "3 too"]
        )
        svg = page_svg(Drawing("name", "title", "caption", figure))
    bars = [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in figure.axes[0].patches]
    assert bars == [(0, 1), (0, 3), (1, 2), (3, 0)]
    assert {"a", "b", "3", "3 too", "one", "two", "things"} <= set(texts(svg))
    assert "c" not in texts(svg)


@pytest.mark.parametrize("marks", [[2.0, 0.0], [50.0, 3.1]])
def test_marks_lie_within_the_axis(marks: list[float]) -> None:
    with figure_style():
        figure = stacked(["one", "two"], [{"a": 1.0}, {"a": 3.0}], "things", ["1", "3"], marks)
    assert figure.axes[0].get_xlim()[1] > max(*marks, 3.0)
    assert len(figure.axes[0].collections[0].get_segments()) == sum(map(bool, marks))


def test_a_trial_is_told_by_what_differs_from_the_baseline() -> None:
    facts = result()
    assert trial_name(facts, facts.trials[1]) == "1 (best): 16 x 3, precision bf16"
    assert trial_name(facts, facts.trials[0]).startswith("0 (baseline): 8 x 6, checkpointing none, precision fp32")
    assert trial_name(facts, facts.trials[2]) == "2: 48 x 1"


def test_few_trials_are_all_named_the_fastest_first() -> None:
    assert [named_trial.number for named_trial in named_trials(result())] == [1, 0, 2]


def test_of_many_the_best_the_baseline_and_the_front_are_named_trials() -> None:
    facts = many(100)
    chosen = [named_trial.number for named_trial in named_trials(facts)]
    assert len(chosen) == MOST_NAMED
    assert facts.best_trial
    assert {facts.best_trial.number, 0} <= set(chosen)
    speeds = [float(named_trial.samples_per_second or 0) for named_trial in named_trials(facts)]
    assert speeds == sorted(speeds, reverse=True)


def test_sizes_are_told_in_the_unit_of_the_largest() -> None:
    assert memory_unit([5 * MIB, None]) == ("MiB", MIB)
    assert memory_unit([5 * MIB, 3 * GIB]) == ("GiB", GIB)
    assert memory_unit([]) == ("MiB", MIB)
