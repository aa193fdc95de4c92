"""The picture of the losses: the answer's line in the band of fp32's, whatever the losses are."""

import math
from dataclasses import replace

import pytest

from autotune.core.loss_curves import Curve, Numerics
from autotune.core.trial import Trial
from autotune.report.figures.loss_curves import draw
from tests.makers import configuration, result, trial
from tests.report.figures.studies import drawn, drawn_texts

ROUNDS = (1, 2, 3)
RUNS_AWAY = {1: Curve(tuple(10.0**step for step in range(14)))}


def falling(pace: float = 1.0, steps: int = 14) -> dict[int, Curve]:
    return {number: Curve(tuple(8 + number / 50 - pace * step / 10 for step in range(steps))) for number in ROUNDS}


def shown(numerics: Numerics, trials: list[Trial]) -> list[str]:
    """The texts of the figure; none where there is no figure."""
    return drawn_texts(draw, replace(result(trials), numerics=numerics))


def test_answer_and_band_have_their_names_and_nothing_else_is_drawn() -> None:
    numerics = Numerics(falling(), {3: falling(1.001), 5: falling(0.0)})
    trials = [trial(0), trial(3, 20.0, of=configuration(precision="bf16")), trial(5, of=configuration(optimizer="sgd"))]
    texts = shown(numerics, trials)
    assert {"answer", "fp32, 3 seeds", "loss"} <= set(texts)
    drawing = drawn(draw, replace(result(trials), numerics=numerics))
    assert len(drawing.figure.axes[0].lines) == 1
    assert drawing.caption.startswith("The line of the answer stays in the band of fp32 over 3 seeds")


def test_one_seed_makes_no_band() -> None:
    one = {1: falling()[1]}
    drawing = drawn(draw, replace(result(), numerics=Numerics(one, {1: one})))
    assert drawing.caption.startswith("The losses of the answer follow those of fp32, of one seed")


def test_what_leaves_the_band_is_said_to() -> None:
    drawing = drawn(draw, replace(result(), numerics=Numerics(falling(), {1: falling(0.0)})))
    assert "leaves the band" in drawing.caption


def test_where_nothing_won_the_fastest_that_learns_differently_is_drawn() -> None:
    rival = replace(trial(1, 40.0, of=configuration(16)), disqualified_reason="its loss differs")
    drawing = drawn(draw, replace(result([trial(0), rival]), numerics=Numerics(falling(), {1: falling(0.0)})))
    assert drawing.caption.startswith("The line of trial 1 leaves")


@pytest.mark.parametrize(
    ("numerics", "is_drawn"),
    [
        (Numerics(), False),
        (Numerics(problem="neither ran"), False),
        (Numerics(falling(), {1: {}}), False),
        (Numerics(falling(), {1: {1: Curve((9.0, math.nan, math.inf))}}), False),
        (Numerics(falling(), {1: falling(), 2: {1: Curve((math.nan,) * 14)}}), True),
        (Numerics(falling(), {1: RUNS_AWAY}), True),
        (Numerics(falling(0.0), {1: falling(0.0)}), True),
    ],
)
def test_no_losses_are_too_strange_to_draw(numerics: Numerics, is_drawn: bool) -> None:
    assert bool(shown(numerics, [trial(0), trial(1, 20.0, of=configuration(16))])) == is_drawn


def test_one_that_runs_away_does_not_flatten_the_band() -> None:
    figure = drawn(draw, replace(result(), numerics=Numerics(falling(), {1: RUNS_AWAY}))).figure
    low, high = figure.axes[0].get_ylim()
    assert 5 < low < high < 10
