"""Speed against memory: each trial where it was measured, and where memory ended."""

from dataclasses import replace

import pytest

from autotune.core.trial import Trial
from autotune.report.figures.speed_against_memory import draw
from tests.makers import ALLOWED, GIB, MIB, completed, configuration, out_of_memory, result, trial
from tests.report.figures.studies import drawn, drawn_points


def test_marks_stand_where_their_trials_were_measured() -> None:
    lost = out_of_memory(configuration(48), held_bytes=1000 * MIB, refused_bytes=50 * MIB)
    over = completed(configuration(24), 70.0, 1050 * MIB, allowed_bytes=ALLOWED)
    trials = [
        trial(0, 10.0, 300 * MIB),
        trial(1, 40.0, 800 * MIB),
        trial(2, 20.0, 500 * MIB),
        Trial(3, configuration(4), replace(completed(configuration(4), 15.0, 400 * MIB), ended_early=True)),
        Trial(4, configuration(48), lost),
        Trial(5, configuration(24), over),
    ]
    drawing = drawn(draw, result(trials))
    points = {
        label: [(round(x, 3), pytest.approx(y)) for x, y in known]
        for label, known in drawn_points(drawing.figure).items()
    }
    gib = [round(mib * MIB / GIB, 3) for mib in (300, 400, 500, 800, 1050)]
    assert points["baseline"] == [(gib[0], 10.0)]
    assert points["best"] == [(gib[3], 40.0)]
    assert points["trials"] == [(gib[2], 20.0)]
    assert points["trials that ended early"] == [(gib[1], 15.0)]
    assert points["ran, but not within what is allowed"] == [(gib[4], 70.0)]
    assert points["out of memory (held + refused)"] == [(gib[4], 0.0)]
    assert points["Pareto front"] == [(gib[0], 10.0), (gib[1], 15.0), (gib[2], 20.0), (gib[3], 40.0)]
    assert "Right of the dashed line is the headroom" in drawing.caption


def test_allowed_and_limit_are_lines_where_they_are_near() -> None:
    drawing = drawn(draw, result())
    far = drawn(draw, replace(result([trial(0, 10.0, 20 * MIB)]), memory_limit_bytes=GIB))
    lines = {line.get_label(): line.get_xdata()[0] for line in drawing.figure.axes[0].lines}
    assert lines["allowed 1000 MiB"] == pytest.approx(1000 * MIB / GIB)
    assert lines["limit 1.07 GiB"] == pytest.approx(1100 * MIB / GIB)
    assert not [line for line in far.figure.axes[0].lines if "allowed" in str(line.get_label())]
    assert "Allowed are 1000 MiB of 1.00 GiB" in far.caption


def test_a_baseline_that_does_not_fit_keeps_its_square() -> None:
    first, other = configuration(8), Trial(1, configuration(48), out_of_memory(configuration(48)))
    over = Trial(0, first, completed(first, 70.0, 1050 * MIB, allowed_bytes=ALLOWED))
    lost = Trial(0, first, out_of_memory(first, held_bytes=900 * MIB, refused_bytes=124 * MIB))
    for baseline, place in ((over, (1050 / 1024, 70.0)), (lost, (1.0, 0.0))):
        drawing = drawn(draw, result([baseline, other, trial(2, 10.0, 500 * MIB)]))
        points = drawn_points(drawing.figure)
        assert points["baseline: does not fit"] == [pytest.approx(place)]
        assert points["out of memory (held + refused)"] == [pytest.approx((1001 / 1024, 0.0))]
        assert "baseline" not in points
        assert "ran, but not within what is allowed" not in points


def test_what_wanted_far_more_stands_at_the_edge() -> None:
    trials = [
        trial(0, 10.0, 300 * MIB),
        Trial(1, configuration(48), out_of_memory(configuration(48), refused_bytes=2**44)),
    ]
    drawing = drawn(draw, result(trials))
    [(x, _)] = drawn_points(drawing.figure)["out of memory (held + refused)"]
    assert x <= drawing.figure.axes[0].get_xlim()[1]
