"""Prefetch factor: batches that each data loader worker prepares ahead."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, whole_number

DEFAULT = 2
"""torch's own, where workers load and nobody says otherwise (`torch.utils.data.DataLoader`)."""


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> int:
    own = base.get("dataloader_prefetch_factor")
    return DEFAULT if own is None else whole_number(1)(own)


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({"dataloader_prefetch_factor": value})


def _read_back(observed: Observed) -> int | None:
    """None where no worker loads: torch has none then."""
    return getattr(observed.trainer.callback_handler.train_dataloader, "prefetch_factor", None)


SETTING = Setting(
    name="prefetch_factor",
    values=(2, 4, 8),
    changes=frozenset({"speed"}),
    summary="Batches that each worker prepares ahead: more of them even out slow samples and take the host's memory.",
    read=whole_number(1),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    ordered=True,
    active_if=("workers", bool),
)
