"""How a search went: each trial as it counts, and what the untried could still win."""

import math
from dataclasses import replace

import pytest

from autotune.core.prospect import OptimalityGap
from autotune.core.trial import Trial
from autotune.report.figures.search_progress import draw
from tests.makers import MIB, completed, configuration, out_of_memory, result, trial
from tests.report.figures.studies import drawn, drawn_places

EARLY = replace(completed(configuration(4), 99.0), ended_early=True)
TRIALS = [
    trial(0, 10.0, 500 * MIB, confirmed=10.0),
    Trial(1, configuration(48), out_of_memory(configuration(48))),
    trial(2, 30.0, 400 * MIB, confirmed=28.0),
    trial(3, 20.0, 300 * MIB),
    Trial(4, configuration(4), EARLY),
]
PROSPECTS = {0: OptimalityGap(math.inf, math.inf, 9), 2: OptimalityGap(0.5, 1.0, 7), 3: OptimalityGap(0.1, 0.2, 6)}


def test_each_trial_that_fits_is_where_its_rounds_measured_it() -> None:
    places = drawn_places(drawn(draw, result(TRIALS)).figure)
    assert places == [
        (0.0, pytest.approx(10.0)),
        (2.0, pytest.approx(28.0)),
        (3.0, pytest.approx(20.0)),
        (4.0, pytest.approx(99.0)),
    ]


def test_the_bound_is_what_the_best_could_still_be_beaten_by() -> None:
    drawing = drawn(draw, result(TRIALS, prospects=PROSPECTS))
    (line,) = drawing.figure.axes[0].lines
    assert list(line.get_ydata()) == pytest.approx([42.0, 30.8])
    assert "untested configuration is above the bound" in drawing.caption


def test_other_samplers_have_no_bound_and_a_bound_far_off_flattens_nothing() -> None:
    far = drawn(draw, replace(result(TRIALS), prospects={2: OptimalityGap(50.0, 500.0, 7)}))
    assert not drawn(draw, result(TRIALS)).figure.axes[0].lines
    assert far.figure.axes[0].get_ylim()[1] <= 2.4 * 99.5


def test_where_fewer_than_two_fit_there_is_no_progress() -> None:
    assert draw(result([TRIALS[1]])) is None
    assert draw(result(TRIALS[:2])) is None
