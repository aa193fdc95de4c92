"""The picture of the losses: every curve and the band are in it, whatever the losses are."""

import math
from dataclasses import replace

import pytest

from autotune.core.loss_curves import Curve, Numerics
from autotune.core.trial import Trial
from autotune.report.figures.loss_curves import draw
from tests.makers import configuration, result, trial
from tests.report.figures.studies import drawn, drawn_texts


def falling(to: float, steps: int = 30) -> Curve:
    return Curve(tuple(to + math.exp(-step / 8) for step in range(steps)))


REFERENCES = (falling(8.0), falling(8.02), falling(8.04))


def shown(numerics: Numerics, trials: list[Trial]) -> list[str]:
    """The texts of the figure; none where there is no figure."""
    return drawn_texts(draw, replace(result(trials), numerics=numerics))


def test_every_curve_and_the_band_have_their_name() -> None:
    numerics = Numerics(REFERENCES, {3: falling(8.01), 5: falling(8.6)})
    trials = [trial(0), trial(3, 20.0, of=configuration(precision="bf16")), trial(5, of=configuration(optimizer="sgd"))]
    said = shown(numerics, trials)
    for words in (
        "fp32, 3 seeds",
        "mean of the last 10 losses: fp32's ± 3 standard deviations",
        "3 (best): 8 x 6, precision bf16",
        "5: 8 x 6, optimizer sgd (flagged)",
    ):
        assert words in said


@pytest.mark.parametrize(
    "numerics",
    [
        Numerics(),
        Numerics((Curve(problem="out of memory"),), problem="fp32 cannot be trained"),
        Numerics(REFERENCES[:1], {1: falling(8.0)}, problem="only one"),
        Numerics(REFERENCES, {1: Curve(problem="out of memory")}),
        Numerics(REFERENCES, {1: Curve((9.0, math.nan, math.inf))}),
        Numerics(REFERENCES, {1: Curve((math.nan,) * 30)}),
        Numerics(REFERENCES, {1: Curve(tuple(10.0**step for step in range(30)))}),
        Numerics((falling(8.0, 3),) * 3, {1: falling(8.0, 3)}),
        Numerics((Curve((0.0,) * 30),) * 3, {1: Curve((0.0,) * 30)}),
        Numerics(REFERENCES, {number: falling(8 + number / 100) for number in range(20)}),
    ],
)
def test_no_losses_are_too_strange_to_draw(numerics: Numerics) -> None:
    said = shown(numerics, [trial(0), trial(1)])
    assert bool(said) == any(reference.losses for reference in numerics.references)


def test_one_that_runs_away_does_not_flatten_the_others() -> None:
    runs_away = Numerics(REFERENCES, {1: Curve(tuple(10.0**step for step in range(30)))})
    made = drawn(draw, replace(result(), numerics=runs_away))
    low, high = made.figure.axes[0].get_ylim()
    assert 6.5 < low < 8.0
    assert 9.0 < high < 10.5
