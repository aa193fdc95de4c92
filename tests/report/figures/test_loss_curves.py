"""The picture of the losses: every compared trial is in it, whatever the losses are."""

import math
from dataclasses import replace

import pytest

from autotune.core.loss_curves import Curve, Numerics
from autotune.core.trial import Trial
from autotune.report.figures.loss_curves import draw
from tests.makers import configuration, result, trial
from tests.report.figures.studies import drawn, drawn_texts

ROUNDS = (1, 2, 3)


def falling(pace: float = 1.0, steps: int = 14) -> dict[int, Curve]:
    return {number: Curve(tuple(8 + number / 50 - pace * step / 10 for step in range(steps))) for number in ROUNDS}


def shown(numerics: Numerics, trials: list[Trial]) -> list[str]:
    """The texts of the figure; none where there is no figure."""
    return drawn_texts(draw, replace(result(trials), numerics=numerics))


def test_every_trial_and_the_reference_have_their_name() -> None:
    numerics = Numerics(falling(), {3: falling(1.1), 5: falling(0.0)})
    trials = [trial(0), trial(3, 20.0, of=configuration(precision="bf16")), trial(5, of=configuration(optimizer="sgd"))]
    texts = shown(numerics, trials)
    for words in (
        "what fp32 learned in each round",
        "3 (best): 8 x 6, precision bf16",
        "5: 8 x 6, optimizer sgd (flagged)",
        "loss minus fp32's",
    ):
        assert words in texts


@pytest.mark.parametrize(
    ("numerics", "is_drawn"),
    [
        (Numerics(), False),
        (Numerics(problem="neither ran"), False),
        (Numerics(falling(), {1: {}}), False),
        (Numerics(falling(), {1: {1: Curve((9.0, math.nan, math.inf))}}), False),
        (Numerics(falling(), {1: falling(), 2: {1: Curve((math.nan,) * 14)}}), True),
        (Numerics(falling(), {1: {1: Curve(tuple(10.0**step for step in range(30)))}}), True),
        (Numerics(falling(0.0), {1: falling(0.0)}), True),
        (Numerics(falling(), {number: falling(1 + number / 100) for number in range(20)}), True),
    ],
)
def test_no_losses_are_too_strange_to_draw(numerics: Numerics, is_drawn: bool) -> None:
    assert bool(shown(numerics, [trial(0), trial(1)])) == is_drawn


def test_one_that_runs_away_does_not_flatten_the_others() -> None:
    runs_away = Numerics(falling(), {1: {1: Curve(tuple(10.0**step for step in range(30)))}})
    figure = drawn(draw, replace(result(), numerics=runs_away)).figure
    low, high = figure.axes[0].get_ylim()
    assert (low, high) == pytest.approx((-1.43, 1.43))
