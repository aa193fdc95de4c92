"""Covariance of the costs of two configurations in a Bayesian linear model.

The logarithm of a cost is the baseline's plus effects: of the micro-batch size (a slope over its logarithm, and a
random walk around it), of each setting's value that is not the baseline's, of such a value growing with the micro-batch, of
pairs of such values, a rest of each computation (of all configurations with micro-steps that compute alike), and a rest of the
configuration itself. Effects are independent and normal, so that the covariance of two configurations is a sum over what they
share; effects are never listed, and a new setting needs no change here (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, section 2.1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.core.configuration import Configuration, Value
from autotune.sampler.gp import Numbers


@dataclass(frozen=True)
class Features:
    """n configurations as numbers."""

    doublings: Numbers  # (n,) log2 of the micro-batch size over the baseline's
    micro: Numbers  # (n,) micro-batch sizes
    work: Numbers  # (n,) samples of a micro-batch, each by its arithmetic as it is padded
    accumulation: Numbers  # (n,) accumulation steps
    codes: NDArray[np.int16]  # (n, settings) index of each setting's value, 0 for the baseline's
    prior_std: Numbers  # (n, settings) standard deviation of that value's effect, in multiples of the usual one
    computations: NDArray[np.intp]  # (n,) number of what a micro-step computes
    starting: Numbers  # (n,) share of a micro-step in which kernels are started, as it is expected

    def __len__(self) -> int:
        return len(self.micro)

    def __getitem__(self, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> "Features":
        return Features(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def only(self, columns: Sequence[int]) -> "Features":
        """The same configurations by some of their settings."""
        selected = np.array(columns, np.intp)
        return replace(self, codes=self.codes[:, selected], prior_std=self.prior_std[:, selected])


def encode(
    configurations: Sequence[Configuration],
    values: Mapping[str, Sequence[Value]],
    baseline: Configuration,
    prior_std: Callable[[str, Value], float] = lambda setting, value: 1.0,
    computes: Callable[[str], bool] = lambda setting: True,
    padded: Callable[[Configuration], float] = lambda configuration: 1.0,
) -> Features:
    """Features of the configurations.

    values: all values of each setting, the baseline's and every configuration's included. prior_std: of a value's effect.
    computes: whether a setting changes what a micro-step computes. Computations are numbered among these configurations.
    padded: arithmetic of a sample in a batch, of that of the longest sample.
    """
    base = baseline.values
    names = [name for name in values if name != "micro_batch_size"]
    ordered = {name: [base[name], *(value for value in values[name] if value != base[name])] for name in names}
    codes = {name: {value: code for code, value in enumerate(ordered[name])} for name in names}
    stds = {name: {value: prior_std(name, value) for value in ordered[name]} for name in names}
    chosen = [configuration.values for configuration in configurations]
    micro = np.array([configuration.micro_batch_size for configuration in configurations], float)
    shape = len(configurations), len(names)
    computing = [name for name in names if computes(name)]
    keys = [(size, *(row[name] for name in computing)) for size, row in zip(micro, chosen, strict=True)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return Features(
        np.log2(micro / baseline.micro_batch_size),
        micro,
        micro * [padded(configuration) for configuration in configurations],
        np.array([configuration.gradient_accumulation_steps for configuration in configurations], float),
        np.array([[codes[name][row[name]] for name in names] for row in chosen], np.int16).reshape(shape),
        np.array([[stds[name][row[name]] for name in names] for row in chosen], float).reshape(shape),
        np.array([numbers[key] for key in keys], np.intp),
        np.zeros(len(configurations)),
    )


@dataclass(frozen=True)
class EffectKernel:
    """Standard deviations of the effects on the logarithm of a cost, before anything is measured."""

    level: float  # of the baseline's cost
    slope: float  # of the micro-batch size, for each doubling
    walk: float  # of the random walk around that, for each doubling
    value: float  # of a setting's value
    growth: (
        float  # of such a value, for each doubling of the micro-batch size; in proportion to the value's own deviation
    )
    pair: float  # of two such values together, likewise
    rest: float  # of a single configuration
    computation: float = 0.0  # of what a micro-step computes
    starting: float = 0.0  # of the seconds in which a kernel starts, all kernels' together

    def covariance(self, shared: "Overlap", one: Features, other: Features) -> Numbers:
        """(n, m) covariances of the logarithms of two sets of points with this overlap."""
        starting = np.outer(one.starting, other.starting)
        return self._of(shared, one.doublings[:, None], other.doublings[None, :], starting)

    def variance(self, shared: "Overlap", one: Features) -> Numbers:
        """(n,): the diagonal of the covariance with itself."""
        return self._of(shared, one.doublings, one.doublings, one.starting**2)

    def _of(self, shared: "Overlap", here: Numbers, there: Numbers, starting: Numbers) -> Numbers:
        product = here * there
        # Two walks from the baseline's size share the steps that both take: none in opposite directions.
        walked = np.where(product > 0, np.minimum(np.abs(here), np.abs(there)), 0.0)
        covariance: Numbers = (
            self.level**2
            + self.slope**2 * product
            + self.walk**2 * walked
            + self.starting**2 * starting
            + shared.open * self.value**2
            + shared.open * (self.growth**2 * product + (shared.values - 1) / 2 * self.pair**2)
            + shared.computation * self.computation**2
            + shared.same * self.rest**2
        )
        return covariance


class Overlap(NamedTuple):
    """Properties that configurations have in common."""

    values: Numbers  # number of values that are not the baseline's
    open: Numbers  # the same, each weighted by the square of its prior_std
    size: Any  # whether they have the same micro-batch size
    same: Any  # whether they are the same configuration
    computation: Any  # whether their micro-steps compute the same


def overlap_of(one: Features, other: Features) -> Overlap:
    """(n, m) each."""
    alike = one.codes[:, None, :] == other.codes[None, :, :]
    size = one.micro[:, None] == other.micro[None, :]
    same = alike.all(2) & size
    alike &= one.codes[:, None, :] != 0
    weighed = np.matmul(alike.astype(np.float64), (one.prior_std**2)[:, :, None])[:, :, 0]
    computation = one.computations[:, None] == other.computations[None, :]
    return Overlap(alike.sum(2, dtype=np.float64), weighed, size, same, computation)


def self_overlap(one: Features) -> Overlap:
    """(n,) each."""
    changed = one.codes != 0
    return Overlap(changed.sum(1, dtype=np.float64), (changed * one.prior_std**2).sum(1), 1.0, 1.0, 1.0)
