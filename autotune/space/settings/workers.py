"""Data loader workers: processes that prepare batches while the device computes."""

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.setting import NO_MEMORY, Context, Effect, field_setting, whole_number

FIELD = "dataloader_num_workers"

MOST = 256
"""Far above what any machine's loading needs; each of them is a process with memory of its own."""

WAITING = 4
"""Workers that are worth a probe on any machine: those that wait for a disk or a network need no core meanwhile."""


def _apply(value: Value, environment: Environment) -> Effect:
    # Without workers the Trainer refuses to prefetch and torch to keep them.
    return Effect(
        {FIELD: value}, contradicts=() if value else ("dataloader_prefetch_factor", "dataloader_persistent_workers")
    )


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    if value and context.workload.no_workers:
        return Exclusion(ExclusionKind.MODEL, detail=context.workload.no_workers)
    cores = context.environment.cpu_count
    is_too_many = int(value) > max(WAITING, cores)
    return Exclusion(ExclusionKind.CORES, {"cores": cores}, "workers") if is_too_many else None


SETTING = field_setting(
    name="workers",
    field=FIELD,
    values=(0, 1, 2, 4, 8, 16),
    default=0,
    costs=NO_MEMORY,
    summary="Processes that prepare batches ahead: they hide slow loading and take CPU cores.",
    read=whole_number(0, MOST),
    apply=_apply,
    read_back=lambda observed: int(observed.loader.num_workers),
    unavailable=_unavailable,
    ordered=True,
)
