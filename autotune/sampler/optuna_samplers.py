"""Samplers by name: `physics` and Optuna's."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna

from autotune.sampler.physics import PhysicsSampler, WarmStart
from autotune.space.search_space import SearchSpace


def make_sampler(name: str, seed: int, space: SearchSpace, knowledge: WarmStart) -> optuna.samplers.BaseSampler:
    """`physics`, `tpe`, `gp`, `random`, `qmc` or `brute-force`; raises KeyError for any other name."""
    samplers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "physics": lambda: PhysicsSampler(space, knowledge, seed),
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, n_startup_trials=5),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=5, warn_independent_sampling=False),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "qmc": lambda: optuna.samplers.QMCSampler(
            seed=seed, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False
        ),
        "brute-force": lambda: optuna.samplers.BruteForceSampler(seed=seed),
    }
    with warnings.catch_warnings():
        # Interfaces that may change; the installed version works.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return samplers[name]()


def fixed_sampler(fixed: Mapping[str, Any], sampler: optuna.samplers.BaseSampler) -> optuna.samplers.BaseSampler:
    """A sampler that proposes these parameters; the other one learns from the trial."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(dict(fixed), sampler)
