"""OptimalityGap: what the untried configurations could still win, as it stood after a trial."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.core.units import finite


@dataclass(frozen=True)
class OptimalityGap:
    """No untried configuration beats the best so far by more than this, with 95 % confidence.

    Shares of the best's speed (of its memory, where that is the objective); infinite while nothing fits. could_win: of
    those that are likely to fit; any_could_win: of all, each as far as it may fit after all. untried: how many were
    considered.
    """

    max_gain_if_fits: float
    max_gain: float
    untried: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinity: None stands for it."""
        return {
            "could_win": finite(self.max_gain_if_fits),
            "any_could_win": finite(self.max_gain),
            "untried": self.untried,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "OptimalityGap":
        likely, every = (math.inf if data[key] is None else float(data[key]) for key in ("could_win", "any_could_win"))
        return cls(likely, every, int(data["untried"]))
