"""Who proposes: Optuna's samplers by our names, and configurations as Optuna's parameters.

A lever whose values have an order goes to Optuna as the index among them (`micro_batch_size_index`), so that a sampler
sees neighbours as neighbours; any other lever as a category.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.configuration import Configuration, Value
from autotune.levers import LEVERS
from autotune.search_space import SearchSpace


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """`tpe`, `gp`, `random`, `qmc` or `brute-force`; raises KeyError for any other name."""
    samplers = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, n_startup_trials=5),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=5, warn_independent_sampling=False),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "qmc": lambda: optuna.samplers.QMCSampler(
            seed=seed, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False
        ),
        "brute-force": lambda: optuna.samplers.BruteForceSampler(seed=seed),
    }
    with warnings.catch_warnings():
        # "Experimental" is said of interfaces that may change; the version that is installed is known to work.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return samplers[name]()


def fixed_sampler(fixed: Mapping[str, Any], sampler: optuna.samplers.BaseSampler) -> optuna.samplers.BaseSampler:
    """A sampler that proposes these parameters, and lets the other one learn of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(dict(fixed), sampler)


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Optuna's distributions of the space; the baseline's values are among them even where they are not proposed."""
    made: dict[str, BaseDistribution] = {}
    for lever, values in _all_values(space).items():
        if LEVERS[lever].ordered:
            made[_parameter(lever)] = IntDistribution(0, len(values) - 1)
        else:
            made[_parameter(lever)] = CategoricalDistribution(values)
    return made


def parameters(space: SearchSpace, configuration: Configuration) -> dict[str, Any]:
    """The configuration as Optuna's parameters."""
    every, values = _all_values(space), configuration.values
    return {
        _parameter(lever): every[lever].index(values[lever]) if LEVERS[lever].ordered else values[lever]
        for lever in every
    }


def configuration_of(space: SearchSpace, given: Mapping[str, Any]) -> Configuration:
    """The configuration of Optuna's parameters."""
    values = {
        lever: known[given[_parameter(lever)]] if LEVERS[lever].ordered else given[_parameter(lever)]
        for lever, known in _all_values(space).items()
    }
    return space.configuration(values)


def openings(space: SearchSpace) -> list[Configuration]:
    """What is worth a probe before any sampler knows anything: the baseline, then it with each other precision.

    Number formats change speed most and cost nothing else to try; samplers need some ten probes to find that out.
    """
    base = space.baseline.values
    others = [value for value in space.values.get("precision", ()) if value != base["precision"]]
    changed = [space.configuration({**base, "precision": value}) for value in others]
    return [space.baseline, *(configuration for configuration in changed if configuration in space)]


def _parameter(lever: str) -> str:
    return f"{lever}_index" if LEVERS[lever].ordered else lever


def _all_values(space: SearchSpace) -> dict[str, tuple[Value, ...]]:
    every: dict[str, tuple[Value, ...]] = {}
    for lever, values in space.values.items():
        own = space.baseline.values[lever]
        known = values if own in values else (*values, own)
        every[lever] = tuple(sorted(known)) if LEVERS[lever].ordered else known
    return every
