"""Data-parallel size: how many ranks train together, each a process with micro-batches of its own."""

import math

from autotune.core.configuration import RANKS, Value
from autotune.core.environment import Environment
from autotune.core.request import MOST_DEVICES
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import in_host_memory
from autotune.space.settings.setting import Context, CostChange, Costs, Effect, Setting, whole_number
from autotune.space.settings.threads import VARIABLE as THREADS


def _apply(value: Value, environment: Environment) -> Effect:
    """Ranks share the machine's threads: torchrun gives each one thread, which would not be what was measured.

    On a CPU gloo is named: accelerate would take MPI if torch was built with it.
    """
    ranks = int(value)
    if ranks == 1:
        return Effect(processes=1)
    threads = {THREADS: str(max(1, environment.threads // ranks))}
    return Effect({"ddp_backend": "gloo"} if environment.is_cpu else {}, environment=threads, processes=ranks)


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    return _too_many(value, context) or (
        in_host_memory(int(value), _host_bytes(context), context) if value != 1 else None
    )


def _host_bytes(context: Context) -> int:
    """Bytes of the host's memory that each rank needs at least.

    On a CPU its weights and gradients; on a GPU a model of the user's own, which each makes before it is moved there.
    """
    workload = context.workload
    if context.environment.is_cpu:
        return (workload.parameter_bytes + workload.gradient_bytes) * context.weight_bytes // 4
    return workload.parameter_bytes if workload.user_objects else 0


def _too_many(value: Value, context: Context) -> Exclusion | None:
    environment = context.environment
    devices, cores = environment.device_count, environment.cpu_count
    if not environment.is_cpu:
        return Exclusion(ExclusionKind.GPUS, {"gpus": devices}) if int(value) > devices else None
    if devices > 1:
        return Exclusion(ExclusionKind.DEVICES, {"devices": devices}) if int(value) > devices else None
    return Exclusion(ExclusionKind.CORES, {"cores": cores}, "ranks") if int(value) > cores else None


def _change(value: Value, context: Context) -> CostChange:
    """Cost of the fewer threads of a rank on a CPU."""
    slower = math.log(int(value)) if context.environment.is_cpu else 0.0
    return CostChange(slower, slower)


SETTING = Setting(
    name=RANKS,
    values=(1, 2, 4, 8, 16),
    summary="Ranks that train together, a GPU each, and average their gradients: less accumulation for the same global batch.",
    read=whole_number(1, MOST_DEVICES),
    apply=_apply,
    read_back=lambda observed: int(getattr(observed.trainer.args, "world_size", 1)),
    unavailable=_unavailable,
    ordered=True,
    costs=Costs(change=_change),
)
