"""Threads: how many compute one operation of a training on a CPU."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, whole_number

VARIABLE = "OMP_NUM_THREADS"


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> int:
    """What torch takes where nobody chose: no field of TrainingArguments says."""
    return environment.threads


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(environment={VARIABLE: str(value)})


def _read_back(observed: Observed) -> int:
    return observed.threads


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if int(value) > environment.cpu_count:
        return f"more threads than the {environment.cpu_count} CPU cores this process may use"
    if not environment.is_cpu and value != environment.threads:
        return "the GPU computes: threads decide the speed of trainings on a CPU"
    return None


SETTING = Setting(
    name="threads",
    values=(1, 2, 4, 8, 16, 32),
    changes=frozenset({"speed"}),
    summary="Threads of one operation on a CPU: cores that only wait for memory help loader workers more.",
    read=whole_number(1),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    ordered=True,
)
