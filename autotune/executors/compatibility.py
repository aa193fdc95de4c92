"""Compatibility: facts besides the environment's that devices must share for their measurements to be compared."""

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.core import InvalidRequest
from autotune.executors import Executor
from autotune.probe.device import nvml
from autotune.probe.device.machine import cpu_name

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def hardware_facts(card: nvml.Card | None, cores: Sequence[int]) -> dict[str, Any]:
    """Name -> fact of this machine, of the card and of its share of the cores; without what is unknown."""
    facts: dict[str, Any] = {"cpu": cpu_name(), "cores": len(cores), "niceness": os.getpriority(os.PRIO_PROCESS, 0)}
    with contextlib.suppress(OSError):
        facts["cpu_quota"] = QUOTA.read_text().strip()
    with contextlib.suppress(OSError):
        facts["shared_memory_bytes"] = shutil.disk_usage("/dev/shm").total
    return facts if card is None else facts | nvml.lasting_facts(card)


def check_same_hardware(executors: Sequence[Executor]) -> None:
    """Raise InvalidRequest if one differs from the first in a fact that all devices of a study share."""
    (first, wanted), *others = [(each.name, {**each.environment.identity(), **each.hardware}) for each in executors]
    for name, own in others:
        keys = [key for key in dict.fromkeys([*wanted, *own]) if own.get(key) != wanted.get(key)]
        if keys:
            differences = "; ".join(f"{key} {own.get(key)}, not {wanted.get(key)}" for key in keys[:5])
            raise InvalidRequest(
                f"{name} cannot be compared with {first}: {differences}.",
                "Search on each by itself, or leave it out of CUDA_VISIBLE_DEVICES.",
            )
