"""Optimality gap after a trial: what the untried configurations could still gain."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.core.units import finite


@dataclass(frozen=True)
class OptimalityGap:
    """No untried configuration beats the best so far by more than this, with 95 % confidence.

    Shares of the best's speed (of its memory, where that is the objective); infinite while nothing fits.
    """

    max_gain: float  # of those that are likely to fit
    max_gain_if_fits: float  # of all, weighted by the probability that they fit
    untried: int  # configurations considered

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: None for infinity."""
        gains = {"could_win": finite(self.max_gain), "any_could_win": finite(self.max_gain_if_fits)}
        return gains | {"untried": self.untried}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "OptimalityGap":
        likely, total = (math.inf if data[key] is None else float(data[key]) for key in ("could_win", "any_could_win"))
        return cls(likely, total, int(data["untried"]))


def more_to_gain(max_gain: float) -> str:
    """`at most 12% more to gain`; a bound above 100% tells nothing."""
    return "more to gain: unknown yet" if max_gain > 1 else f"at most {max(0.0, max_gain):.0%} more to gain"
