"""How alike two configurations are in what they cost: the covariance of a Bayesian linear model.

The logarithm of a cost is that of the baseline plus effects: of the micro-batch size (a slope over its logarithm, and a
random walk around it), of each setting's value that is not the baseline's, of such a value growing with the micro-batch, of
pairs of such values, and a rest that is the configuration's own. Effects are independent and normal, so that the
covariance of two configurations is a sum over what they share; no effect is ever written down one by one, and a new setting
needs nothing here (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.core.configuration import Configuration, Value
from autotune.sampler.gp import Numbers


@dataclass(frozen=True)
class Features:
    """n configurations as numbers.

    doublings: (n,) log2 of the micro-batch size over the baseline's. micro, accumulation: (n,) sizes.
    codes: (n, settings) which value each setting has, 0 for the baseline's own. prior_std: (n, settings) how many times the usual
    deviation that value's effect may be off.
    """

    doublings: Numbers
    micro: Numbers
    accumulation: Numbers
    codes: NDArray[np.int16]
    prior_std: Numbers

    def __len__(self) -> int:
        return len(self.micro)

    def __getitem__(self, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> "Features":
        return Features(
            self.doublings[chosen],
            self.micro[chosen],
            self.accumulation[chosen],
            self.codes[chosen],
            self.prior_std[chosen],
        )

    def only(self, columns: Sequence[int]) -> "Features":
        """The same configurations by some of their settings."""
        kept = np.array(columns, np.intp)
        return replace(self, codes=self.codes[:, kept], prior_std=self.prior_std[:, kept])


def encode(
    configurations: Sequence[Configuration],
    values: Mapping[str, Sequence[Value]],
    baseline: Configuration,
    prior_std: Callable[[str, Value], float] = lambda setting, value: 1.0,
) -> Features:
    """values: the settings of the space, the baseline's and every configuration's values among them. prior_std: of a setting's
    value, how many times the usual deviation its effect may be off."""
    base = baseline.values
    names = [name for name in values if name != "micro_batch_size"]
    code = {
        name: {base[name]: 0} | {v: at for at, v in enumerate((v for v in values[name] if v != base[name]), 1)}
        for name in names
    }
    micro = np.array([one.micro_batch_size for one in configurations], float)
    stds = {name: {value: prior_std(name, value) for value in code[name]} for name in names}
    chosen = [one.values for one in configurations]
    rows = [[code[name][one[name]] for name in names] for one in chosen]
    return Features(
        np.log2(micro / baseline.micro_batch_size),
        micro,
        np.array([one.gradient_accumulation_steps for one in configurations], float),
        np.array(rows, np.int16).reshape(len(configurations), len(names)),
        np.array([[stds[name][one[name]] for name in names] for one in chosen], float).reshape(
            len(configurations), len(names)
        ),
    )


@dataclass(frozen=True)
class EffectKernel:
    """Standard deviations of the effects on the logarithm of a cost, before anything is measured.

    level: of the baseline's own cost. slope, walk: of the micro-batch, for each doubling. value: of a setting's value;
    growth: of such a value, for each doubling; pair: of two such values together. rest: of what is none of these.
    """

    level: float
    slope: float
    walk: float
    value: float
    growth: float
    pair: float
    rest: float

    def covariance(self, shared: "Overlap", one: Features, other: Features) -> Numbers:
        """(n, m) covariances of the logarithms of points that share this."""
        return self._of(shared, one.doublings[:, None], other.doublings[None, :])

    def variance(self, shared: "Overlap", one: Features) -> Numbers:
        """(n,): the diagonal of the covariance with itself."""
        return self._of(shared, one.doublings, one.doublings)

    def _of(self, shared: "Overlap", here: Numbers, there: Numbers) -> Numbers:
        product = here * there
        # Two walks from the baseline's size share the steps that both take: none in opposite directions.
        walked = np.where(product > 0, np.minimum(np.abs(here), np.abs(there)), 0.0)
        found: Numbers = (
            self.level**2
            + self.slope**2 * product
            + self.walk**2 * walked
            + shared.open * self.value**2
            + shared.values * (self.growth**2 * product + (shared.values - 1) / 2 * self.pair**2)
            + shared.same * self.rest**2
        )
        return found


class Overlap(NamedTuple):
    """What configurations share. values: how many values that are not the baseline's; open: the same, each weighed by the
    square of its prior_std; size: whether their micro-batch size is one; same: whether they are the same configuration."""

    values: Numbers
    open: Numbers
    size: Any
    same: Any


def overlap_of(one: Features, other: Features) -> Overlap:
    """(n, m) each."""
    alike = one.codes[:, None, :] == other.codes[None, :, :]
    size = one.micro[:, None] == other.micro[None, :]
    same = alike.all(2) & size
    alike &= one.codes[:, None, :] != 0
    weighed = np.matmul(alike.astype(np.float64), (one.prior_std**2)[:, :, None])[:, :, 0]
    return Overlap(alike.sum(2, dtype=np.float64), weighed, size, same)


def self_overlap(one: Features) -> Overlap:
    """(n,) each."""
    changed = one.codes != 0
    return Overlap(changed.sum(1, dtype=np.float64), (changed * one.prior_std**2).sum(1), 1.0, 1.0)
