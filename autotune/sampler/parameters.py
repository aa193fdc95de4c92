"""Configurations as Optuna's parameters.

A setting whose values have an order goes to Optuna as the index among them (`micro_batch_size_index`), so that a sampler
sees neighbours as neighbours; any other setting as a category.
"""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.core.configuration import Configuration, Value
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Optuna's distributions of the space; the baseline's values are among them even where they are not proposed."""
    made: dict[str, BaseDistribution] = {}
    for setting, values in every_value(space).items():
        if SETTINGS[setting].ordered:
            made[_parameter(setting)] = IntDistribution(0, len(values) - 1)
        else:
            made[_parameter(setting)] = CategoricalDistribution(values)
    return made


def parameters(space: SearchSpace, configuration: Configuration) -> dict[str, Any]:
    """The configuration as Optuna's parameters."""
    every, values = every_value(space), configuration.values
    return {
        _parameter(setting): every[setting].index(values[setting]) if SETTINGS[setting].ordered else values[setting]
        for setting in every
    }


def configuration_of(space: SearchSpace, given: Mapping[str, Any]) -> Configuration:
    """The configuration of Optuna's parameters."""
    values = {
        setting: known[given[_parameter(setting)]] if SETTINGS[setting].ordered else given[_parameter(setting)]
        for setting, known in every_value(space).items()
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


def _parameter(setting: str) -> str:
    return f"{setting}_index" if SETTINGS[setting].ordered else setting


def every_value(space: SearchSpace) -> dict[str, tuple[Value, ...]]:
    """Every setting's values, the baseline's among them."""
    every: dict[str, tuple[Value, ...]] = {}
    for setting, values in space.values.items():
        own = space.baseline.values[setting]
        known = values if own in values else (*values, own)
        every[setting] = tuple(sorted(known)) if SETTINGS[setting].ordered else known
    return every
