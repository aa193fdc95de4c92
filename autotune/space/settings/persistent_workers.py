"""Persistent workers: data loader processes that live on from one epoch to the next."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, yes_or_no


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> bool:
    return bool(base.get("dataloader_persistent_workers", False))


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({"dataloader_persistent_workers": value})


def _read_back(observed: Observed) -> bool | None:
    """None where no worker loads: there is nothing to persist."""
    loader = observed.trainer.callback_handler.train_dataloader
    return bool(loader.persistent_workers) if getattr(loader, "num_workers", 0) else None


SETTING = Setting(
    name="persistent_workers",
    values=(False, True),
    changes=frozenset({"speed"}),
    summary="Workers that live on from epoch to epoch save their start where epochs are short; a probe sees one epoch only.",
    read=yes_or_no,
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    active_if=("workers", bool),
)
