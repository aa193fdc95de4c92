"""Configurations as Optuna's parameters.

A setting with ordered values is the index among them (`micro_batch_size_index`), so that a sampler sees neighbours
as neighbours; any other setting is a category.
"""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.core.configuration import Configuration, Value
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Optuna's distributions of the space; they include the baseline's values even if these are not proposed."""
    return {
        _parameter(setting): IntDistribution(0, len(values) - 1)
        if SETTINGS[setting].ordered
        else CategoricalDistribution(values)
        for setting, values in all_values(space).items()
    }


def parameters(space: SearchSpace, configuration: Configuration) -> dict[str, Any]:
    """The configuration as Optuna's parameters."""
    values = configuration.values
    return {
        _parameter(setting): choices.index(values[setting]) if SETTINGS[setting].ordered else values[setting]
        for setting, choices in all_values(space).items()
    }


def configuration_of(space: SearchSpace, params: Mapping[str, Any]) -> Configuration:
    """The configuration of Optuna's parameters."""
    values = {
        setting: choices[params[_parameter(setting)]] if SETTINGS[setting].ordered else params[_parameter(setting)]
        for setting, choices in all_values(space).items()
    }
    return space.configuration(values)


def openings(space: SearchSpace) -> list[Configuration]:
    """The baseline, then it with each other precision, for samplers that know nothing yet.

    Number formats change speed most and cost nothing else to try; samplers need some ten probes to learn that.
    """
    base = space.baseline.values
    others = [value for value in space.values.get("precision", ()) if value != base["precision"]]
    changed = [space.configuration({**base, "precision": value}) for value in others]
    return [space.baseline, *(configuration for configuration in changed if configuration in space)]


def _parameter(setting: str) -> str:
    return f"{setting}_index" if SETTINGS[setting].ordered else setting


def all_values(space: SearchSpace) -> dict[str, tuple[Value, ...]]:
    """Every setting's values, those of the baseline and of trials included."""
    choices: dict[str, tuple[Value, ...]] = {}
    for setting, values in space.values.items():
        own = space.baseline.values[setting]
        values = tuple(dict.fromkeys((*values, own, *space.tried.get(setting, ()))))
        choices[setting] = tuple(sorted(values)) if SETTINGS[setting].ordered else values
    return choices
