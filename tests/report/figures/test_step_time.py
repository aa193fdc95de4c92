"""How a step's time divides: the parts are those of the table."""

from dataclasses import replace

import pytest

from autotune.core.trial import Trial
from autotune.report.figures.step_time import draw
from tests.makers import result, trial
from tests.report.figures.studies import divided, drawn


def of(whole: Trial) -> Trial:
    rounds = tuple(divided(measurement) for measurement in whole.confirmations)
    return replace(whole, measurement=divided(whole.measurement), confirmations=rounds)


def test_the_parts_of_baseline_best_and_finalists_make_up_the_step() -> None:
    trials = [
        of(trial(0, 10.0, confirmed=10.0)),
        of(trial(1, 40.0, confirmed=40.0)),
        of(trial(2, 39.0, confirmed=38.0)),
    ]
    drawing = drawn(draw, result([*trials, of(trial(3, 5.0))]))
    bars = drawing.figure.axes[0].patches
    assert len(bars) == 3 * 5, "five parts of three finalists; the fourth trial is none"
    for row, finalist in enumerate(trials):
        parts = [bar.get_width() for bar in bars[row::3]]
        assert sum(parts) == pytest.approx(finalist.final.step_time_s or 0), "in seconds: a step takes four and more"
        assert parts[1] == pytest.approx(finalist.final.forward_time_s or 0)


def test_without_timed_parts_there_is_no_figure() -> None:
    assert draw(result()) is None
