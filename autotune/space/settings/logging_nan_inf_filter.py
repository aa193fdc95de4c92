"""The logged loss's filter: whether the Trainer looks at every micro-step's loss before it goes on."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, yes_or_no

FIELD = "logging_nan_inf_filter"


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> bool:
    return bool(base.get(FIELD, True))


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({FIELD: value})


def _read_back(observed: Observed) -> bool:
    return bool(getattr(observed.trainer.args, FIELD))


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if not value and environment.is_cpu:
        return "a CPU has no device that it would wait for"
    return None


SETTING = Setting(
    name=FIELD,
    values=(True, False),
    changes=frozenset({"speed"}),
    summary="Off, the host need not wait for the device in every micro-step; losses that are NaN are then logged as such.",
    read=yes_or_no,
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
)
