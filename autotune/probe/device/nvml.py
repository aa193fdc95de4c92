"""The view of the device through NVML alone: all that the parent has, so that CUDA never wakes in it."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.core.errors import InvalidRequest


@dataclass(frozen=True)
class Card:
    """A GPU as NVML knows it. index: as nvidia-smi counts; count: how many this process may see."""

    index: int
    uuid: str
    name: str
    count: int


def choose_device(asked: str) -> Card | None:
    """The card of `auto`, `cpu`, `cuda` or `cuda:1`; None means the CPU.

    CUDA_VISIBLE_DEVICES is honoured: cuda:1 is its second entry. Raises InvalidRequest for a card that is not there.
    """
    if asked == "cpu":
        return None
    cards = visible_cards()
    if asked == "auto":
        return cards[0] if cards else None
    index = int(asked.partition(":")[2] or 0)
    if index < len(cards):
        return cards[index]
    there = ", ".join(f"cuda:{number} ({card.name})" for number, card in enumerate(cards))
    raise InvalidRequest(
        f"There is no device {asked}: {f'this machine shows {there}' if cards else 'no CUDA GPU is visible here'}.",
        "Use --device=cpu, or check the driver with nvidia-smi." if not cards else "Use one of these.",
    )


def visible_cards() -> list[Card]:
    """Every GPU that this process may use; none where there is no driver."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        every = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(Exception):  # NVML's errors: a card that fell off the bus is none
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                every.append((index, str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle))))
        chosen = _visible(every, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return [Card(index, uuid, name, len(chosen)) for index, uuid, name in chosen]


def _visible(every: list[tuple[int, str, str]], variable: str | None) -> list[tuple[int, str, str]]:
    """Those that CUDA_VISIBLE_DEVICES names, in its order, up to the first that does not exist (as CUDA reads it)."""
    if variable is None:
        return every
    chosen = []
    for word in filter(None, re.split(r"[,\s]+", variable)):
        if word.startswith("MIG-"):
            raise InvalidRequest(
                f"CUDA_VISIBLE_DEVICES names a slice of a card ({word}), which autotune cannot read yet.",
                "Name a whole card, or use --device=cpu.",
            )
        match = [one for one in every if word == str(one[0]) or one[1].startswith(word)]
        if not match:
            break
        chosen.append(match[0])
    return chosen


@contextlib.contextmanager
def kept_initialized() -> Iterator[None]:
    """Inside, the driver keeps its cards initialized between probes.

    Without persistence mode it takes them down with their last client, and setting them up anew takes each probe seconds
    (NVIDIA Driver Persistence). Nothing where there is no driver.
    """
    with _nvml() as nvml:
        if nvml is not None:
            with contextlib.suppress(Exception):  # NVML's errors: without a card nothing is kept
                for index in range(nvml.nvmlDeviceGetCount()):
                    nvml.nvmlDeviceGetHandleByIndex(index)
        yield


def driver_version() -> str | None:
    """The NVIDIA driver's version, None without one."""
    with _nvml() as nvml:
        return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def usage_of(card: Card | None) -> Callable[[], tuple[int, list[str]] | None]:
    """What asks `device_used` of this card; without one nothing is known."""
    return partial(device_used, card) if card else lambda: None


def device_used(card: Card) -> tuple[int, list[str]] | None:
    """Bytes in use on the card, and the processes on it that this one did not start, as text; None without an answer."""
    import psutil

    with _nvml() as nvml, contextlib.suppress(Exception):  # NVML's errors: whatever it is, the figure is unknown
        if nvml is None:
            return None
        handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
        used = _used(nvml, handle)
        running = []
        with contextlib.suppress(Exception):  # in containers NVML may know the memory and no process
            running = list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        mine = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        # In a container NVML counts processes as the machine does: a number unknown here names nobody.
        others = [one.pid for one in running if one.pid not in mine and psutil.pid_exists(one.pid)]
        return used, [_process_name(pid) for pid in others]
    return None


def used_bytes(uuid: str | None) -> int | None:
    """Bytes in use by anyone on the card of this uuid, else on the first; None where NVML does not answer."""
    # NVML's errors are one class a code; any of them means: unknown.
    with _nvml() as nvml, contextlib.suppress(Exception):
        if nvml is not None:
            return _used(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0))
    return None


def _used(nvml: Any, handle: Any) -> int:
    """Bytes that processes have on the card, as `cudaMemGetInfo` counts them.

    The first version of NVML's answer adds what driver and firmware keep for themselves (nvml.h, `nvmlMemory_t`), some 0.6
    GB of an H200, which CUDA counts neither as used nor in the card's total.
    """
    with contextlib.suppress(Exception):  # a driver or pynvml that knows no second version
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def topology(card: Card) -> str:
    """PCIe generation and width of the card's slot; empty where NVML does not say."""
    with _nvml() as nvml, contextlib.suppress(Exception):
        if nvml is not None:
            handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
            generation = nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
            return f"PCIe generation {generation} x{nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)}"
    return ""


def _process_name(pid: int) -> str:
    import psutil

    with contextlib.suppress(psutil.Error):
        return f"{psutil.Process(pid).name()} ({pid})"
    return f"process {pid}"


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, ready; None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
