"""What must be traced for a set of configurations: one trace for all whose step makes and frees the same."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.configuration import Configuration
from autotune.environment import Environment
from autotune.levers import LEVERS
from autotune.levers.optimizer import own_name
from autotune.training_arguments import adapter_arguments, model_arguments, training_arguments

SAME_MEMORY = {"fp16": "sixteen bits", "bf16": "sixteen bits", "tf32": None}
"""Fields of TrainingArguments that need the same bytes as another one, and those that need none."""

StepKey = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Wanted:
    """What must be traced for a set of configurations: each distinct step and update once.

    steps, updates: key -> training and model arguments and adapter of one configuration that has it.
    """

    steps: Mapping[StepKey, Mapping[str, Any]]
    updates: Mapping[str, Mapping[str, Any]]
    on_cuda: bool

    def request(self) -> dict[str, Any]:
        """The `request` of an order of kind `trace`."""
        return {
            "steps": list(self.steps.values()),
            "updates": [{**one["training_arguments"], "adapter": one["adapter"]} for one in self.updates.values()],
            "on_cuda": self.on_cuda,
        }


def wanted_traces(
    configurations: Iterable[Configuration], environment: Environment, base: Mapping[str, Any], task: str = ""
) -> Wanted:
    """The traces that these configurations need. base: the user's own arguments, those that differ from the defaults.

    task: the workload's; an adapter may leave the head of some to be trained.
    """
    steps: dict[StepKey, Mapping[str, Any]] = {}
    updates: dict[str, Mapping[str, Any]] = {}
    for configuration in configurations:
        step, update = step_key(configuration, environment), update_key(configuration, environment, base)
        if step in steps and update in updates:
            continue
        fields = {
            "training_arguments": training_arguments(configuration, environment, base),
            "model_arguments": model_arguments(configuration, environment),
            "adapter": adapter_arguments(configuration, environment, task),
        }
        steps.setdefault(step, fields)
        updates.setdefault(update, fields)
    return Wanted(steps, updates, not environment.is_cpu)


def step_key(configuration: Configuration, environment: Environment) -> StepKey:
    """What tells one configuration's forward and backward from another's: the fields of the levers that change memory."""
    fields: dict[str, Any] = {}
    for name, value in configuration.levers:
        if "memory" in LEVERS[name].changes and name != "optimizer":
            settings = LEVERS[name].apply(value, environment)
            fields |= {
                **settings.training_arguments,
                **settings.model_arguments,
                **settings.environment,
                **settings.adapter,
            }
    known: dict[str, Any] = {}
    for name, told in fields.items():
        value = json.dumps(told, sort_keys=True) if isinstance(told, Mapping) else told
        if (same := SAME_MEMORY.get(name, name)) is not None:
            known[same] = known.get(same) or value
    return tuple(sorted(known.items()))


def update_key(configuration: Configuration, environment: Environment, base: Mapping[str, Any]) -> str:
    """The name of the configuration's optimizer, and behind it the adapter that it updates where there is one."""
    own = configuration.values.get("optimizer")
    name = str(own if own is not None else own_name(base))
    adapter = adapter_arguments(configuration, environment, "")
    return f"{name} {json.dumps(adapter, sort_keys=True)}" if adapter else name


def optimizer_of(update: str) -> str:
    """The optimizer's name alone."""
    return update.partition(" ")[0]
