"""Style in which figures are drawn: text that is text, and SVG that says no more than it must."""

import re

from autotune.report.figures.canvas import ACCENT, BAD, Drawing, figure_style, new_figure, page_svg
from tests.report.figures.studies import texts


def drawing() -> Drawing:
    figure = new_figure()
    axes = figure.add_subplot()
    axes.scatter(range(300), range(300), 20, ACCENT)
    axes.bar(5, 5, facecolor="none", edgecolor=BAD, hatch="//")
    axes.set_xlabel("$x_1$ of <b> & 統計")
    return Drawing("some-name", "A title", "A caption.", figure)


def test_text_is_written_as_text_in_the_reader_s_own_font() -> None:
    with figure_style():
        svg = page_svg(drawing())
    assert "$x_1$ of <b> & 統計" in texts(svg)
    assert "DejaVu" not in svg
    assert svg.count("font-family") == 1


def test_many_marks_of_one_kind_say_their_colour_once() -> None:
    with figure_style():
        svg = page_svg(drawing())
    marks = re.findall(r"<use [^>]*>", svg)
    assert len(marks) >= 300
    assert sum("style" in mark for mark in marks) < 20
    assert "var(--accent)" in svg
