"""Likeness: facts beside the environment's that devices must share for their measurements to be compared."""

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.core import InvalidRequest
from autotune.probe.device import nvml
from autotune.probe.device.machine import cpu_name

QUOTA = Path("/sys/fs/cgroup/cpu.max")


def likeness(card: nvml.Card | None, cores: Sequence[int]) -> dict[str, Any]:
    """Name -> fact of this machine, of the card and of its share of the cores; without what is unknown."""
    facts: dict[str, Any] = {"cpu": cpu_name(), "cores": len(cores), "niceness": os.getpriority(os.PRIO_PROCESS, 0)}
    with contextlib.suppress(OSError):
        facts["cpu_quota"] = QUOTA.read_text().strip()
    with contextlib.suppress(OSError):
        facts["shared_memory_bytes"] = shutil.disk_usage("/dev/shm").total
    return facts if card is None else facts | nvml.lasting_facts(card)


def check_alike(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise InvalidRequest where devices differ; facts: name of the device -> its facts."""
    (first, wanted), *others = facts.items()
    for name, own in others:
        keys = dict.fromkeys([*wanted, *own])
        if differences := [
            f"{key} {own.get(key)}, not {wanted.get(key)}" for key in keys if own.get(key) != wanted.get(key)
        ]:
            raise InvalidRequest(
                f"{name} cannot be compared with {first}: {'; '.join(differences[:5])}.",
                "Search on each by itself, or leave it out of CUDA_VISIBLE_DEVICES.",
            )
