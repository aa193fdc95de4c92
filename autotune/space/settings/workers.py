"""Data loader workers: processes that prepare batches while the device computes."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, whole_number


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> int:
    return whole_number(0)(base.get("dataloader_num_workers", 0))


WAITING = 4
"""As many workers are worth a probe on any machine: those that wait for a disk or a network need no core meanwhile."""


def _apply(value: Value, environment: Environment) -> Effect:
    # Without workers the Trainer refuses to prefetch and torch to keep them.
    alone = () if value else ("dataloader_prefetch_factor", "dataloader_persistent_workers")
    return Effect({"dataloader_num_workers": value}, contradicts=alone)


def _read_back(observed: Observed) -> int:
    return int(observed.trainer.callback_handler.train_dataloader.num_workers)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if int(value) > max(WAITING, environment.cpu_count):
        return f"more workers than the {environment.cpu_count} CPU cores this process may use"
    return None


SETTING = Setting(
    name="workers",
    values=(0, 1, 2, 4, 8, 16),
    changes=frozenset({"speed"}),
    summary="Processes that prepare batches ahead: they hide slow loading and take CPU cores.",
    read=whole_number(0),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    ordered=True,
)
