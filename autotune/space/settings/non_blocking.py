"""Non-blocking copies: batches move to the GPU while the training process goes on."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, yes_or_no

FIELD = "accelerator_config"


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> bool:
    """What stands in a file that the field may name instead is not known here; the Trainer's own default is no."""
    own = base.get(FIELD)
    return yes_or_no(own.get("non_blocking", False)) if isinstance(own, Mapping) else False


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({FIELD: {"non_blocking": value}})


def _read_back(observed: Observed) -> bool | None:
    config = getattr(observed.trainer.accelerator, "dataloader_config", None)
    return None if config is None else bool(config.non_blocking)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value and environment.is_cpu:
        return "on a CPU nothing is copied to a device"
    return None


SETTING = Setting(
    name="non_blocking",
    values=(False, True),
    changes=frozenset({"speed"}),
    summary="Copies of batches from page-locked memory run beside the compute.",
    read=yes_or_no,
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    active_if=("pin_memory", bool),
)
