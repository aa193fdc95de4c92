"""Expandable segments: the device's allocator grows its blocks in place instead of taking new ones."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, yes_or_no
from autotune.space.variables import allocator_settings, allocator_variable

OPTION = "expandable_segments"


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> bool:
    """As the caller's own variable says: no field of TrainingArguments does."""
    return allocator_settings(environment.variables).get(OPTION, "").lower() == "true" and not environment.is_cpu


def _apply(value: Value, environment: Environment) -> Effect:
    if environment.is_cpu:
        return Effect()
    return Effect(environment={allocator_variable(environment.variables): f"{OPTION}:{value}"})


def _read_back(observed: Observed) -> bool | None:
    own = observed.allocator.get(OPTION)
    return None if own is None else bool(own)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    return "it is a way of a GPU's allocator" if value and environment.is_cpu else None


SETTING = Setting(
    name="expandable_segments",
    values=(False, True),
    changes=frozenset({"speed", "memory"}),
    summary="The device's allocator grows blocks in place: less memory is lost to fragments where batches differ in length.",
    read=yes_or_no,
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    traced=False,
    of_process=True,
)
