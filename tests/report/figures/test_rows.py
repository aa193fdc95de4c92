"""Names of trials in figures, and rows of bars whose parts add up."""

from autotune.report.figures.canvas import Drawing, figure_style, page_svg
from autotune.report.figures.rows import LINES, MOST_NAMED, named_trials, rows_of, stacked, trial_name
from tests.makers import result
from tests.report.figures.studies import many, texts


def test_long_names_take_more_lines_and_push_what_is_below() -> None:
    short, long, endless = rows_of(["short", "word " * 20, "word " * 200])
    assert (len(short.lines), len(long.lines), len(endless.lines)) == (1, 2, LINES)
    assert long.top == short.bottom
    assert endless.top == long.bottom
    assert endless.lines[-1].endswith("…")


def test_parts_follow_each_other_empty_ones_have_no_name_and_marks_are_within_the_axis() -> None:
    parts = [{"a": 1.0, "b": 2.0, "c": 0}, {"a": 3.0, "b": 0, "c": 0}]
    with figure_style():
        figure = stacked(["first", "second"], parts, "things", ["3", "3 too"], [50.0, 0.0])
        svg = page_svg(Drawing("name", "title", "caption", figure))
    bars = [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in figure.axes[0].patches]
    assert bars == [(0, 1), (0, 3), (1, 2), (3, 0)]
    assert {"a", "b", "3", "3 too", "first", "second", "things"} <= set(texts(svg))
    assert "c" not in texts(svg)
    assert figure.axes[0].get_xlim()[1] > 50.0
    assert len(figure.axes[0].collections[0].get_segments()) == 1


def test_a_trial_is_named_by_what_differs_from_the_baseline() -> None:
    study = result()
    assert trial_name(study, study.trials[1]) == "1 (best): 16 x 3, precision bf16"
    assert trial_name(study, study.trials[0]).startswith("0 (baseline): 8 x 6, checkpointing none, precision fp32")
    assert [trial.number for trial in named_trials(study)] == [1, 0, 2], "the fastest first"


def test_of_many_the_best_the_baseline_and_the_front_are_named() -> None:
    study = many(100)
    trials = named_trials(study)
    assert len(trials) == MOST_NAMED
    assert study.best_trial
    assert {study.best_trial.number, 0} <= {trial.number for trial in trials}
    speeds = [float(trial.samples_per_second or 0) for trial in trials]
    assert speeds == sorted(speeds, reverse=True)
