"""Pinned memory: page-locked host batches that a GPU copies without a detour."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, yes_or_no


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> bool:
    # On CPU the Trainer forces it off whatever the arguments say, so off is what the user really has there.
    return bool(base.get("dataloader_pin_memory", True)) and not environment.is_cpu


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({"dataloader_pin_memory": value})


def _read_back(observed: Observed) -> bool:
    return bool(observed.trainer.callback_handler.train_dataloader.pin_memory)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value and environment.is_cpu:
        return "the Trainer forces pinned memory off on a CPU: there is no device to copy to"
    return None


SETTING = Setting(
    name="pin_memory",
    values=(True, False),
    changes=frozenset({"speed"}),
    summary="Page-locked host memory makes copies to a GPU faster.",
    read=yes_or_no,
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
)
