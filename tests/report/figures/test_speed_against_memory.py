"""Speed against memory: each trial where it was measured, and where memory ends."""

from dataclasses import replace

import pytest

from autotune.core.trial import Trial
from autotune.report.figures.speed_against_memory import draw
from tests.makers import ALLOWED, MIB, completed, configuration, out_of_memory, result, trial
from tests.report.figures.studies import drawn, drawn_places, drawn_texts


def test_what_fits_is_where_it_was_measured_and_the_rest_is_counted() -> None:
    over = completed(configuration(24), 70.0, 1050 * MIB, allowed_bytes=ALLOWED)
    trials = [
        trial(0, 10.0, 300 * MIB),
        trial(1, 40.0, 800 * MIB, of=configuration(16)),
        Trial(2, configuration(48), out_of_memory(configuration(48))),
        Trial(3, configuration(24), over),
    ]
    drawing = drawn(draw, result(trials))
    assert drawn_places(drawing.figure) == [pytest.approx((300, 10.0)), pytest.approx((800, 40.0))]
    assert drawing.caption.endswith("Not in it: 2 without a speed or too large.")
    assert drawing.file_title == "40.0 instead of 10.0 samples/s, 800 MiB instead of 300 MiB"
    assert {"answer", "yours"} <= set(drawn_texts(draw, result(trials)))


def test_what_is_allowed_is_a_line_where_it_is_near() -> None:
    study = result([trial(0, 10.0, 600 * MIB), trial(1, 20.0, 500 * MIB, of=configuration(16))])
    far = drawn(draw, replace(study, allowed_bytes=100 * ALLOWED))
    assert drawn(draw, study).figure.axes[0].lines[0].get_xdata()[0] == pytest.approx(1000)
    assert not far.figure.axes[0].lines
    assert "97.66 GiB are allowed, far right of the picture." in far.caption


def test_one_trial_is_no_picture() -> None:
    assert draw(result([trial(0)])) is None
