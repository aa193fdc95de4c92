"""Prospects of a search: what the untried configurations could still gain after a trial, and how long it will take."""

from dataclasses import dataclass

from autotune.core.io import Serializable


@dataclass(frozen=True)
class OptimalityGap(Serializable):
    """Upper bounds of the gain of untried configurations over the best so far, with 95 % confidence.

    Shares of the best's speed (of its memory, if that is the objective); infinite while nothing fits.
    """

    max_gain: float  # of those that are likely to fit
    max_gain_if_fits: float  # of all, weighted by the probability that they fit
    untried: int  # configurations considered


@dataclass(frozen=True)
class Forecast(Serializable):
    """Seconds of a search, as expected when it had measured the user's own settings, and as it took in all."""

    expected_s: float
    took_s: float


def more_to_gain(max_gain: float) -> str:
    """`at most 12% more to gain`; a bound above 100% tells nothing."""
    return "more to gain: unknown yet" if max_gain > 1 else f"at most {max(0.0, max_gain):.0%} more to gain"
