"""Loss curves: whether configurations learn as float32 does, judged by their losses over the same few steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from autotune.core.io import Serializable

STEPS = 30
"""Optimizer steps of each compared training."""

JUDGED = 10
"""Its last steps, whose mean loss is compared."""

SEEDS = (0, 1, 2)
"""Seeds of the float32 trainings; their spread is the normal difference between trainings."""

DEVIATIONS = 3.0
"""Standard deviations of the float32 trainings' means from which on a mean is flagged."""

LOSSES = "losses"
"""Name of the comparison among what a search skipped for want of time."""

LEAST_DIFFERENCE = 0.001
"""Share of the loss that is never flagged: with a model's own weights and no dropout seeds vary little or nothing, and
three seeds can be close by chance."""


@dataclass(frozen=True)
class Curve(Serializable):
    """The loss of each optimizer step of one training."""

    losses: tuple[float, ...] = ()  #: in the steps' order, NaN and infinities included
    skipped_steps: int = 0  #: optimizer steps that fp16's loss scaling skipped
    problem: str = ""  #: why there are no losses

    @property
    def level(self) -> float:
        """Mean of the last ten losses; NaN where there are none."""
        return fmean(self.losses[-JUDGED:]) if self.losses else math.nan

    @property
    def non_finite_step(self) -> int | None:
        """The first step, counted from 1, whose loss was NaN or infinite."""
        return next((step for step, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON: NaN and infinities as text."""
        return super().to_dict() | {"losses": [loss if math.isfinite(loss) else str(loss) for loss in self.losses]}


@dataclass(frozen=True)
class Numerics(Serializable):
    """The loss curves of float32 and of trials, over the same steps on the same data."""

    FORMER_NAMES = {"reference_levers": "reference_settings"}  # noqa: RUF012

    references: tuple[Curve, ...] = ()  #: float32's, one a seed
    curves: Mapping[int, Curve] = field(default_factory=dict)  #: trial number -> its curve
    reference_settings: Mapping[str, Any] = field(default_factory=dict)  #: what the references trained with
    weights: str = "random weights"  #: where the model's weights came from, as text
    problem: str = ""  #: why nothing can be compared
    note: str = ""

    @property
    def has_losses(self) -> bool:
        """Whether any float32 training has losses: without them there is nothing to draw."""
        return any(curve.losses for curve in self.references)

    @property
    def level(self) -> float:
        """Mean over the seeds of float32's last ten losses."""
        return fmean(curve.level for curve in self.references)

    @property
    def deviation(self) -> float:
        """Sample standard deviation (n - 1) over the seeds of the mean of float32's last ten losses."""
        return stdev(curve.level for curve in self.references)

    @property
    def band(self) -> tuple[float, float] | None:
        """Lowest and highest mean of the last ten losses that counts as float32's; None where it is unknown."""
        if self.problem or len(self.references) < 2:
            return None
        width = max(DEVIATIONS * self.deviation, LEAST_DIFFERENCE * abs(self.level))
        return self.level - width, self.level + width

    def is_checked(self, number: int) -> bool:
        """Whether this trial's losses were compared, or not even finite."""
        curve = self.curves.get(number)
        return bool(curve and curve.losses and (self.band or curve.non_finite_step))

    def flag(self, number: int) -> str:
        """Why this trial does not learn as float32 does; empty where it does, and where that is unknown."""
        if not self.is_checked(number):
            return ""
        curve = self.curves[number]
        if step := curve.non_finite_step:
            return f"the loss became {curve.losses[step - 1]} in step {step} of {len(curve.losses)}"
        assert self.band is not None
        low, high = self.band
        if low <= curve.level <= high:
            return ""
        if not self.deviation:
            return f"loss {curve.level:.5g} is not fp32's {self.level:.5g}, which is the same with every seed"
        away = abs(curve.level - self.level) / self.deviation
        return f"loss {curve.level:.5g} is {away:.3g} standard deviations from fp32's {self.level:.5g}"

    def why_unchecked(self, number: int) -> str:
        """Why this trial's losses were not compared; empty where they were."""
        if self.is_checked(number):
            return ""
        curve = self.curves.get(number)
        return self.problem or (curve.problem if curve else "not a finalist")
