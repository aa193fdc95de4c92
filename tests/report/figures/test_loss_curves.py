"""The picture of the losses: every curve and the band are in it, whatever the losses are."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.numerics import Curve, Numerics
from autotune.report.loss_curves import loss_curves


def falling(to: float, steps: int = 30) -> Curve:
    return Curve(tuple(to + math.exp(-step / 8) for step in range(steps)))


REFERENCES = (falling(8.0), falling(8.02), falling(8.04))


def drawn(path: Path, numerics: Numerics, names: dict[int, str]) -> str:
    """The picture's text and comments: matplotlib names each text that it draws as paths in a comment."""
    loss_curves(path, numerics, names)
    text = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    return " ".join(re.findall(r"<!-- (.*?) -->", text))


def test_every_curve_and_the_band_have_their_name(tmp_path: Path) -> None:
    numerics = Numerics(REFERENCES, {3: falling(8.01), 5: falling(8.6)})
    said = drawn(tmp_path / "one.svg", numerics, {3: "trial 3: bf16", 5: "trial 5: sgd"})
    for words in (
        "fp32, 3 seeds",
        "± 3 standard deviations",
        "trial 3: bf16",
        "trial 5: sgd (flagged)",
        "random weights",
    ):
        assert words in said
    assert "trial 3: bf16 (flagged)" not in said
    loss_curves(tmp_path / "two.svg", numerics, {3: "trial 3: bf16", 5: "trial 5: sgd"})
    assert len((tmp_path / "one.svg").read_text()) == len((tmp_path / "two.svg").read_text())


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
def test_no_losses_are_too_strange_to_draw(tmp_path: Path, numerics: Numerics) -> None:
    drawn(tmp_path / "losses.svg", numerics, {})


def test_one_that_runs_away_does_not_flatten_the_others(tmp_path: Path) -> None:
    from autotune.report.loss_curves import _limits

    low, high = _limits(Numerics(REFERENCES, {1: Curve(tuple(10.0**step for step in range(30)))})) or (0, 0)
    assert 6.5 < low < 8.0
    assert 9.0 < high < 10.5
