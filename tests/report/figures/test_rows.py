"""Rows of a chart: whole names, and parts that add up."""

import pytest

from autotune.report.figures.canvas import Drawing, figure_style, page_svg
from autotune.report.figures.rows import LINES, rows_of, stacked
from tests.report.figures.studies import texts


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
