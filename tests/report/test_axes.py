"""Axes of figures: their ticks have room, whatever the numbers."""

import itertools

import pytest

from autotune.report.axes import Axis, nice, text_width


@pytest.mark.parametrize("low", [0.0, -3.7, 8.0, 1e-9, 1e6])
@pytest.mark.parametrize("span", [1e-6, 0.31, 1.0, 7.0, 999.0, 1e9])
@pytest.mark.parametrize("ends", [(0.0, 300.0), (0.0, 90.0), (205.0, 0.0)])
def test_ticks_are_round_inside_and_their_texts_do_not_overlap(
    low: float, span: float, ends: tuple[float, float]
) -> None:
    ticks = Axis("", low, low + span, *ends).ticks
    places = sorted(place for place, _ in ticks)
    assert all(-1 <= place <= 301 for place in places)
    widest = 12.0 if ends[1] < ends[0] else max((text_width(text) for _, text in ticks), default=0.0)
    assert len(ticks) <= 10
    assert len(ticks) <= 2 or all(b - a > widest for a, b in itertools.pairwise(places))
    assert len({text for _, text in ticks}) == len(ticks)


def test_ticks_of_whole_numbers_and_nothing() -> None:
    assert [text for _, text in Axis("trial", -0.1, 2.1, 0.0, 300.0, whole=True).ticks] == ["0", "1", "2"]
    assert Axis("", 0.0, 0.0, 0.0, 300.0).ticks == []


def test_a_value_far_off_stays_a_number_a_renderer_can_count() -> None:
    axis = Axis("", 0.0, 1.0, 0.0, 300.0)
    assert (axis.at(0.5), axis.at(1.0)) == (150.0, 300.0)
    assert axis.at(1e300) < 1e5


@pytest.mark.parametrize(("step", "rounded"), [(0.9, 1), (1.1, 2), (2.2, 2.5), (3, 5), (7, 10), (0.03, 0.05), (0, 1)])
def test_a_step_becomes_round(step: float, rounded: float) -> None:
    assert nice(step) == pytest.approx(rounded)


def test_a_text_is_as_wide_as_its_longest_line() -> None:
    assert text_width("mmm\nmmmm") == text_width("mmmm") > text_width("iiii")
    assert text_width("\u6a21\u578b") > text_width("ab")
