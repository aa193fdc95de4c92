"""The data-parallel size: how many ranks train together, each a process with micro-batches of its own."""

import math
from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import RANKS, Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Change, Effect, Observed, Setting, whole_number
from autotune.space.settings.threads import VARIABLE as THREADS


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> int:
    """No field of TrainingArguments says: it is the launcher that starts ranks, and nobody asked one to."""
    return 1


def _apply(value: Value, environment: Environment) -> Effect:
    """Ranks share the machine's threads; left to itself torchrun gives each one thread, and so would not be what was
    measured. On a CPU gloo is named: accelerate would take MPI where torch was built with it."""
    ranks = int(value)
    if ranks == 1:
        return Effect(processes=1)
    threads = {THREADS: str(max(1, environment.threads // ranks))}
    return Effect({"ddp_backend": "gloo"} if environment.is_cpu else {}, environment=threads, processes=ranks)


def _read_back(observed: Observed) -> int:
    return int(getattr(observed.trainer.args, "world_size", 1))


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if environment.is_cpu:
        cores = environment.cpu_count
        return f"more ranks than the {cores} CPU core(s) this process may use" if int(value) > cores else None
    cards = environment.device_count
    return f"more ranks than the {cards} GPU(s) that are visible" if int(value) > cards else None


def _change(value: Value, environment: Environment, workload: Workload) -> Change:
    """DistributedDataParallel copies gradients into buckets of its own, all of them together as large as the gradients (Li
    et al., PyTorch Distributed, 2020). On a CPU a rank has its part of the threads, and is as much slower."""
    if value == 1:
        return Change()
    slower = math.log(int(value)) if environment.is_cpu else 0.0
    return Change(slower, slower, float(workload.gradient_bytes))


SETTING = Setting(
    name=RANKS,
    values=(1, 2, 4, 8, 16),
    changes=frozenset({"speed", "memory"}),
    summary="Ranks that train together, a GPU each, and average their gradients: less accumulation for the same global batch.",
    read=whole_number(1),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    ordered=True,
    change=_change,
)
