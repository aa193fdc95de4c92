"""Numerics: whether configurations learn as float32 does, judged by their losses over the same few steps."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

STEPS = 30
"""Optimizer steps of each training that is compared."""

JUDGED = 10
"""Its last steps, whose mean loss is compared."""

SEEDS = (0, 1, 2)
"""Seeds of the float32 trainings: their spread is what a training may differ by without anything being wrong."""

DEVIATIONS = 3.0
"""Standard deviations of the float32 trainings' means from which on a mean lies outside."""


LOSSES = "losses"
"""What a search says that it left out where there was no time to compare them."""

LEAST_DIFFERENCE = 0.001
"""Share of the loss that is never flagged: a model's own weights without dropout leave the seeds little or nothing to vary,
and three seeds can be close by chance."""


@dataclass(frozen=True)
class Curve:
    """The loss of each optimizer step of one training, in their order; what is not finite stays as it was.

    skipped_steps: optimizer steps that fp16's loss scaling left out. problem: why there are no losses.
    """

    losses: tuple[float, ...] = ()
    skipped_steps: int = 0
    problem: str = ""

    @property
    def level(self) -> float:
        """Mean of the last ten losses; NaN where there are none."""
        return fmean(self.losses[-JUDGED:]) if self.losses else math.nan

    @property
    def non_finite_step(self) -> int | None:
        """The first step, counted from 1, whose loss was NaN or infinite; None where all were finite."""
        return next((step for step, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that every JSON reader takes: NaN and infinities as text."""
        return asdict(self) | {"losses": [loss if math.isfinite(loss) else str(loss) for loss in self.losses]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Curve":
        return cls(**{**data, "losses": tuple(float(loss) for loss in data["losses"])})


@dataclass(frozen=True)
class Numerics:
    """The loss curves of float32 and of trials, over the same steps on the same data.

    references: float32's, one a seed. curves: trial number -> its curve. reference_settings: what the references trained
    with. weights: where the model's weights came from, for people. problem: why nothing can be compared; else empty.
    note: what else was noticed.
    """

    references: tuple[Curve, ...] = ()
    curves: Mapping[int, Curve] = field(default_factory=dict)
    reference_settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "random weights"
    problem: str = ""
    note: str = ""

    @property
    def has_losses(self) -> bool:
        """Whether any float32 training told its losses: without them there is nothing to draw."""
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
        return f"loss {curve.level:.5g} lies {away:.3g} standard deviations from fp32's {self.level:.5g}"

    def why_unchecked(self, number: int) -> str:
        """Why this trial's losses were not compared; empty where they were."""
        if self.is_checked(number):
            return ""
        curve = self.curves.get(number)
        return self.problem or (curve.problem if curve else "not a finalist")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, whose keys are text."""
        return {
            "references": [curve.to_dict() for curve in self.references],
            "curves": {str(number): curve.to_dict() for number, curve in self.curves.items()},
            "reference_settings": dict(self.reference_settings),
            "weights": self.weights,
            "problem": self.problem,
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Numerics":
        renamed = {"reference_levers": "reference_settings"}  # as it was written before
        return cls(
            **{
                **{renamed.get(name, name): value for name, value in data.items()},
                "references": tuple(Curve.from_dict(one) for one in data["references"]),
                "curves": {int(number): Curve.from_dict(one) for number, one in data["curves"].items()},
            }
        )
