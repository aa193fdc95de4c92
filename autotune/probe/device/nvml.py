"""GPUs as NVML shows them, without waking CUDA."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psutil

from autotune.core import InvalidRequest

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Card:
    """A GPU as NVML knows it. index: as nvidia-smi counts; count: how many this process may see."""

    index: int
    uuid: str
    name: str
    count: int


def choose_device(device: str) -> Card | None:
    """The card of `auto`, `cpu`, `cuda` or `cuda:1`; None means the CPU.

    CUDA_VISIBLE_DEVICES is honoured: cuda:1 is its second entry. Raises InvalidRequest for a card that is not there.
    """
    if device == "cpu":
        return None
    cards = visible_cards()
    if device == "auto":
        return cards[0] if cards else None
    index = int(device.partition(":")[2] or 0)
    if index < len(cards):
        return cards[index]
    there = ", ".join(f"cuda:{number} ({card.name})" for number, card in enumerate(cards))
    raise InvalidRequest(
        f"There is no device {device}: {f'this machine shows {there}' if cards else 'no CUDA GPU is visible here'}.",
        "Use --device=cpu, or check the driver with nvidia-smi." if not cards else "Use one of these.",
    )


def visible_cards() -> list[Card]:
    """GPUs that this process may use; none without a driver."""
    cards: list[tuple[int, str, str]] = []
    with _nvml() as nvml:
        for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
            with contextlib.suppress(Exception):  # NVML's errors: a card that fell off the bus
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                cards.append((index, str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle))))
        visible = _visible(cards, os.environ.get("CUDA_VISIBLE_DEVICES")) if nvml else []
    return [Card(index, uuid, name, len(visible)) for index, uuid, name in visible]


def _visible(cards: list[tuple[int, str, str]], variable: str | None) -> list[tuple[int, str, str]]:
    """Cards that CUDA_VISIBLE_DEVICES names, in its order, up to the first that does not exist (as CUDA reads it)."""
    if variable is None:
        return cards
    visible = []
    for word in filter(None, re.split(r"[,\s]+", variable)):
        if word.startswith("MIG-"):
            raise InvalidRequest(
                f"CUDA_VISIBLE_DEVICES names a slice of a card ({word}), which autotune cannot read yet.",
                "Name a whole card, or use --device=cpu.",
            )
        match = next((card for card in cards if word == str(card[0]) or card[1].startswith(word)), None)
        if match is None:
            break
        visible.append(match)
    return visible


@contextlib.contextmanager
def kept_initialized() -> Iterator[None]:
    """Keep the driver's cards initialized between probes.

    Without persistence mode the driver shuts a card down with its last client; initializing it takes each probe seconds
    (NVIDIA Driver Persistence).
    """
    with _nvml() as nvml:
        with contextlib.suppress(Exception):  # NVML's errors: without a card nothing is kept
            for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
                nvml.nvmlDeviceGetHandleByIndex(index)
        yield


def driver_version() -> str | None:
    """The NVIDIA driver's version, None without one."""
    return _ask(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))


def usage_of(card: Card | None) -> Callable[[], tuple[int, list[str]] | None]:
    """`device_used` of this card; None without a card."""
    return partial(device_used, card) if card else lambda: None


def device_used(card: Card) -> tuple[int, list[str]] | None:
    """(Bytes in use on the card, names of processes on it that this one did not start); None without an answer."""

    def used(nvml: Any) -> tuple[int, list[str]]:
        handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
        running: list[int] = []
        with contextlib.suppress(Exception):  # unsupported in some containers
            running = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        # In a container NVML shows the machine's process ids, which may be unknown here.
        return _used(nvml, handle), [_process_name(pid) for pid in running if pid not in own and psutil.pid_exists(pid)]

    return _ask(used)


def used_bytes(uuid: str | None) -> int | None:
    """Bytes in use on the card of this uuid, else on the first; None without an answer."""

    def used(nvml: Any) -> int:
        return _used(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0))

    return _ask(used)


def _used(nvml: Any, handle: Any) -> int:
    """Bytes that processes have on the card, as `cudaMemGetInfo` counts them.

    The first version of NVML's answer adds what driver and firmware reserve (nvml.h, `nvmlMemory_t`), 0.6 GB on an H200.
    """
    with contextlib.suppress(Exception):  # a driver or pynvml that knows no second version
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def topology(card: Card) -> str:
    """PCIe generation and width of the card's slot; empty where NVML does not say."""

    def slot(nvml: Any) -> str:
        handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
        generation = nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
        return f"PCIe generation {generation} x{nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)}"

    return _ask(slot) or ""


def lasting_facts(card: Card) -> dict[str, Any]:
    """Name -> what decides a card's speed besides its model, as its owner set it; without what NVML does not say."""

    def read(nvml: Any) -> dict[str, Any]:
        handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
        questions: dict[str, Callable[[], Any]] = {
            "power_limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "ecc": lambda: nvml.nvmlDeviceGetEccMode(handle)[0],
            "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
            "pcie_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        }
        facts = {}
        for name, question in questions.items():
            with contextlib.suppress(Exception):  # NVML's errors: not supported by this card
                facts[name] = int(question())
        return facts

    return _ask(read) or {}


def _process_name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{psutil.Process(pid).name()} ({pid})"
    return f"process {pid}"


def _ask(question: Callable[[Any], Answer]) -> Answer | None:
    """NVML's answer; None without a driver, and for any of its errors."""
    with _nvml() as nvml, contextlib.suppress(Exception):
        return question(nvml) if nvml else None
    return None


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, initialised; None without a driver."""
    nvml = opened()
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()


def opened() -> Any:
    """NVML, initialised until this process or the last `nvmlShutdown`; None without a driver."""
    with contextlib.suppress(Exception):  # NVMLError, or no library
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return None
