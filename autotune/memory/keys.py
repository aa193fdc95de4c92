"""Keys of traces: configurations with steps that make and free the same tensors share one."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.core.configuration import Configuration
from autotune.core.environment import Environment
from autotune.memory.sharding import on_one_rank
from autotune.space.settings import SETTINGS
from autotune.space.settings.optimizer import user_optimizer
from autotune.space.setup import training_setup

SAME_MEMORY = {"fp16": "sixteen bits", "bf16": "sixteen bits", "tf32": None}
"""Fields of TrainingArguments with the same bytes as another one, and fields without any."""

StepKey = tuple[tuple[str, Any], ...]


class UpdateKey(NamedTuple):
    """Fields that decide an optimizer's memory."""

    optimizer: str
    dtype: str = "float32"  # of the weights that it steps
    adapter: str = ""  # that has them, as JSON


@dataclass(frozen=True)
class Wanted:
    """The traces for a set of configurations, each distinct step and update once."""

    # Key -> training and model arguments and adapter of a configuration with that key.
    steps: Mapping[StepKey, Mapping[str, Any]]
    updates: Mapping[UpdateKey, Mapping[str, Any]]
    on_cuda: bool

    def request(self) -> dict[str, Any]:
        """The `request` of an order of kind `trace`."""
        return {
            "steps": list(self.steps.values()),
            "updates": [
                {**fields["training_arguments"], "adapter": fields["adapter"], "dtype": dtype}
                for (_, dtype, _), fields in self.updates.items()
            ],
            "adapters": [fields["adapter"] for fields in self.steps.values()],
            "on_cuda": self.on_cuda,
        }


def wanted_traces(
    configurations: Iterable[Configuration], environment: Environment, base: Mapping[str, Any], task: str = ""
) -> Wanted:
    """The traces that these configurations need.

    base: the user's arguments that differ from the defaults. task: the workload's; some adapters train its head.
    """
    steps: dict[StepKey, Mapping[str, Any]] = {}
    updates: dict[UpdateKey, Mapping[str, Any]] = {}
    for configuration in configurations:
        step, update = step_key(configuration, environment), update_key(configuration, environment, base)
        if step in steps and update in updates:
            continue
        alone = on_one_rank(configuration)
        setup = training_setup(alone, environment, base, task)
        fields = {name: getattr(setup, name) for name in ("training_arguments", "model_arguments", "adapter")}
        steps.setdefault(step, fields)
        updates.setdefault(update, fields)
    return Wanted(steps, updates, not environment.is_cpu)


def step_key(configuration: Configuration, environment: Environment) -> StepKey:
    """The fields of the settings that change the memory of forward and backward."""
    fields: dict[str, Any] = {}
    for name, value in on_one_rank(configuration).settings:
        if SETTINGS[name].costs.memory and SETTINGS[name].costs.traced and name != "optimizer":
            effect = SETTINGS[name].apply(value, environment)
            for part in (effect.training_arguments, effect.model_arguments, effect.environment, effect.adapter):
                fields |= part
    key: dict[str, Any] = {}
    for name, value in fields.items():
        value = json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else value
        if (same := SAME_MEMORY.get(name, name)) is not None:
            key[same] = key.get(same) or value
    return tuple(sorted(key.items()))


def update_key(configuration: Configuration, environment: Environment, base: Mapping[str, Any]) -> UpdateKey:
    """Key of the memory of the configuration's optimizer."""
    own = configuration.values.get("optimizer")
    setup = training_setup(configuration, environment, base)
    name = str(own if own is not None else user_optimizer(base))
    adapter = json.dumps(setup.adapter, sort_keys=True) if setup.adapter else ""
    return UpdateKey(name, str(setup.model_arguments["dtype"]), adapter)
