"""What memory is for: parts by the estimate, the measured peak beside them."""

from dataclasses import replace

import pytest

from autotune.core.trial import Trial
from autotune.report.figures.memory_parts import draw
from tests.makers import MIB, configuration, out_of_memory, result, trial
from tests.report.figures.studies import drawn, drawn_texts, peak


def test_parts_are_those_of_the_estimate_and_the_measured_peak_is_marked() -> None:
    study = replace(
        result([trial(0, 10.0, 480 * MIB), trial(1, 20.0, 610 * MIB)]),
        estimated_peaks={0: peak(500), 1: peak(600)},
    )
    drawing, shown = drawn(draw, study), drawn_texts(draw, study)
    bars = drawing.figure.axes[0].patches
    assert sum(bar.get_width() for bar in bars[0::2]) == pytest.approx(500)
    assert sum(bar.get_width() for bar in bars[1::2]) == pytest.approx(600)
    assert [segment[0][0] for segment in drawing.figure.axes[0].collections[0].get_segments()] == [480, 610]
    assert {"weights", "gradients", "optimizer states", "activations", "temporary", "unused by the allocator"} <= set(
        shown
    )
    assert "context" not in shown
    assert "The best: estimated peak 600 MiB, measured peak 610 MiB." in drawing.caption


def test_a_baseline_that_ran_out_of_memory_shows_what_it_would_need() -> None:
    lost = Trial(0, configuration(48), out_of_memory(configuration(48), peak_device_bytes=700 * MIB))
    study = replace(result([lost, trial(1)]), estimated_peaks={0: peak(5000)})
    drawing = drawn(draw, study)
    assert drawing.caption.endswith("The baseline: estimated peak 4.88 GiB, it ran out of memory.")
    assert not drawing.figure.axes[0].collections, "what it had reached by then is no peak"


def test_where_nothing_was_traced_there_is_no_figure() -> None:
    assert draw(result()) is None
