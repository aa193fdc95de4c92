"""Progress of a search: the best so far, and what the untried could still win."""

import math
from dataclasses import replace

import pytest

from autotune.core.prospect import OptimalityGap
from autotune.core.request import tuning_request
from autotune.core.trial import Trial
from autotune.report.figures.search_progress import draw
from tests.makers import MIB, completed, configuration, out_of_memory, result, trial
from tests.report.figures.studies import drawn, drawn_points

EARLY = replace(completed(configuration(4), 99.0), ended_early=True)
TRIALS = [
    trial(0, 10.0, 500 * MIB),
    Trial(1, configuration(48), out_of_memory(configuration(48))),
    trial(2, 30.0, 400 * MIB, confirmed=28.0),
    trial(3, 20.0, 300 * MIB),
    Trial(4, configuration(4), EARLY),
]
PROSPECTS = {0: OptimalityGap(math.inf, math.inf, 9), 2: OptimalityGap(0.5, 1.0, 7), 3: OptimalityGap(0.1, 0.2, 6)}


def test_the_best_so_far_never_falls_and_counts_what_ran_to_its_end() -> None:
    drawing = drawn(draw, replace(result(TRIALS), prospects=PROSPECTS))
    points = drawn_points(drawing.figure)
    assert points["best so far"] == [(n, pytest.approx(y)) for n, y in enumerate([10.0, 10.0, 30.0, 30.0, 30.0])]
    assert points["does not fit, or failed"] == [(1.0, 0.0)]
    assert points["best"] == [(2.0, pytest.approx(30.0))], "as its probe measured it"
    assert points["trial"] == [(3.0, pytest.approx(20.0)), (4.0, pytest.approx(99.0))]


def test_bounds_are_what_the_best_could_still_be_beaten_by() -> None:
    drawing = drawn(draw, replace(result(TRIALS), prospects=PROSPECTS))
    points = drawn_points(drawing.figure)
    assert points["bound: what is likely to fit"] == [(2.0, pytest.approx(45.0)), (3.0, pytest.approx(33.0))]
    assert points["bound: any untested"] == [(2.0, pytest.approx(60.0)), (3.0, pytest.approx(36.0))]
    assert "nothing untested is above" in drawing.caption


def test_of_memory_less_is_better_and_the_bound_lies_below() -> None:
    study = result(TRIALS, request=tuning_request("m", 48, objective="memory"), prospects=PROSPECTS)
    drawing = drawn(draw, study)
    points = drawn_points(drawing.figure)
    assert [y for _, y in points["best so far"]] == [500, 500, 400, 300, 300]
    assert points["bound: what is likely to fit"] == [(2.0, pytest.approx(200)), (3.0, pytest.approx(270))]
    assert "nothing untested is below" in drawing.caption


def test_other_samplers_have_no_bound_and_a_bound_far_off_flattens_nothing() -> None:
    plain = drawn(draw, result(TRIALS))
    far = drawn(draw, replace(result(TRIALS), prospects={2: OptimalityGap(50.0, 500.0, 7)}))
    assert not [label for label in drawn_points(plain.figure) if label.startswith("bound")]
    assert far.figure.axes[0].get_ylim()[1] <= 2 * 99.5


def test_a_baseline_that_does_not_fit_keeps_its_square() -> None:
    lost = [Trial(number, configuration(8), out_of_memory(configuration(8))) for number in (0, 1)]
    drawing = drawn(draw, result([*lost, trial(2)]))
    points = drawn_points(drawing.figure)
    assert points["baseline: does not fit"] == [(0.0, 0.0)]
    assert points["does not fit, or failed"] == [(1.0, 0.0)]


def test_where_nothing_fits_there_is_no_progress() -> None:
    assert draw(result([TRIALS[1]])) is None
