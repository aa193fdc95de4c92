"""The bars of memory and speed: their lengths and the words beside them."""

from dataclasses import replace

from autotune.core import Outcome, Trial
from autotune.report.figures.bars import draw
from tests.makers import MIB, configuration, ended, out_of_memory, result, trial
from tests.report.figures.studies import drawn, drawn_texts, many


def test_each_trial_has_its_name_its_memory_and_its_speed() -> None:
    lost = out_of_memory(configuration(48), held_bytes=560 * MIB, refused_bytes=13 * MIB)
    trials = [
        trial(0, 10.0, 300 * MIB),
        trial(1, 41.5, 800 * MIB, of=configuration(16, precision="bf16")),
        Trial(2, configuration(48), lost),
        Trial(3, configuration(4), ended(Outcome.NON_FINITE_LOSS)),
    ]
    study = result(trials)
    figure, shown = drawn(draw, study).figure, drawn_texts(draw, study)
    for words in (
        "1 (best): 16 x 3, precision bf16",
        "800",
        "41.5",
        "300",
        "10.0",
        "2: 48 x 1",
        "> 573",
        "out of memory",
    ):
        assert words in shown
    assert "non finite loss" in shown
    lengths = [[round(bar.get_width(), 3) for bar in axes.patches] for axes in figure.axes]
    assert lengths == [[800.0, 300.0, 573.0], [41.5, 10.0]]
    assert [bool(bar.get_hatch()) for bar in figure.axes[0].patches] == [False, False, True]


def test_of_500_trials_ten_are_shown_and_the_caption_says_so() -> None:
    drawing = drawn(draw, many(120))
    assert len(drawing.figure.axes[0].patches) == 10
    assert drawing.caption.startswith("10 of 120 trials")


def test_without_memory_and_speed_there_are_no_bars() -> None:
    study = result([Trial(0, configuration(), ended(Outcome.UNSUPPORTED))])
    assert draw(study) is None
    assert draw(replace(study, trials=[])) is None
