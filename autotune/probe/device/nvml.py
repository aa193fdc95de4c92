"""GPUs as NVML shows them, without waking CUDA."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar

import psutil

from autotune.core import InvalidRequest
from autotune.probe.device.cuda_order import cuda_order

Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Card:
    """A GPU as NVML knows it. index: as nvidia-smi counts; count: how many this process may see."""

    index: int
    uuid: str
    name: str
    count: int


def choose_device(device: str) -> Card | None:
    """The card of `auto`, `cpu`, `cuda` or `cuda:1`; None means the CPU.

    CUDA_VISIBLE_DEVICES is honoured: cuda:1 is its second entry. Raises InvalidRequest for a card that is not there, and as
    `visible_cards` does.
    """
    if device == "cpu":
        return None
    cards = visible_cards()
    if device == "auto":
        return cards[0] if cards else None
    index = int(device.partition(":")[2] or 0)
    if index < len(cards):
        return cards[index]
    if not cards:
        error = first_error()
        raise InvalidRequest(
            f"There is no device {device}: no CUDA GPU is visible here{f' (NVML: {error})' if error else ''}.",
            "Use --device=cpu, or check the driver with nvidia-smi.",
        )
    there = ", ".join(f"cuda:{number} ({card.name})" for number, card in enumerate(cards))
    raise InvalidRequest(f"There is no device {device}: this machine shows {there}.", "Use one of these.")


def visible_cards() -> list[Card]:
    """GPUs that this process may use, in CUDA's order and without those that NVML cannot open; none without a driver.

    Raises InvalidRequest for a slice of a card (MIG).
    """
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = None if variable is None else list(filter(None, re.split(r"[,\s]+", variable)))
    if name := next((word for word in words or () if word.startswith("MIG-")), None):
        raise InvalidRequest(
            f"CUDA_VISIBLE_DEVICES names a slice of a card ({name}), which autotune cannot read yet.",
            "Name a whole card, or use --device=cpu.",
        )
    are_uuids = words is not None and all(word.startswith("GPU-") for word in words)
    with _nvml():  # once for all questions
        there = _ask(_all_cards) or []
        cards = [card for card in there if card]
        if not are_uuids and cards:
            cards = _as_cuda_counts(cards, len(cards) == len(there))
        visible = cards if words is None else _named(cards, words)
        # CUDA counts slices as devices: with one on the machine numbers name no cards.
        for card in visible if are_uuids or not visible else cards:
            if _ask(partial(_has_slices, card)):
                raise InvalidRequest(
                    f"{card.name} ({card.uuid}) is divided into slices (MIG), which autotune cannot measure yet.",
                    "Set CUDA_VISIBLE_DEVICES to the uuid of a GPU without MIG (nvidia-smi -L), or use --device=cpu.",
                )
    return [replace(card, count=len(visible)) for card in visible]


def _all_cards(nvml: Any) -> list[Card | None]:
    """All of the machine in NVML's order, which is that of their slots; None for one that it cannot open."""
    cards: list[Card | None] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        cards.append(None)
        with contextlib.suppress(Exception):  # NVML's errors: it fell off the bus, or is not for this user
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            cards[-1] = Card(index, str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle)), 0)
    return cards


def _as_cuda_counts(cards: list[Card], are_all: bool) -> list[Card]:
    """The cards in CUDA's order, fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID; those that it does not show are last.

    In NVML's order if CUDA's is the same for certain, or CUDA does not answer: then torch cannot use it either. are_all:
    whether these are all cards of the machine.
    """
    by_slot = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({card.name for card in cards}) == 1
    order = () if by_slot and are_all else _cuda_order(tuple(card.uuid for card in cards))
    positions = {uuid: position for position, uuid in enumerate(order)}
    return sorted(cards, key=lambda card: positions.get(card.uuid, len(positions)))


@cache
def _cuda_order(_: tuple[str, ...]) -> tuple[str, ...]:
    """`cuda_order`, asked once for the cards of these uuids."""
    return cuda_order()


def _named(cards: list[Card], words: list[str]) -> list[Card]:
    """Cards that these words of CUDA_VISIBLE_DEVICES name, in its order, up to the first that does not exist.

    None if one is named twice (both as CUDA reads it).
    """
    named: list[Card] = []
    for word in words:
        match = next(
            (card for position, card in enumerate(cards) if word == str(position) or card.uuid.startswith(word)), None
        )
        if match is None:
            break
        named.append(match)
    return named if len(set(named)) == len(named) else []


def _has_slices(card: Card, nvml: Any) -> bool:
    return bool(nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(card.uuid))[0])


def first_error() -> str:
    """The first error that keeps NVML from showing a card; empty if it shows all, and without the driver's library."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                pynvml.nvmlDeviceGetHandleByIndex(index)
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:
        return "" if type(error).__name__ == "NVMLError_LibraryNotFound" else str(error)
    return ""


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
    """(Bytes in use on the card, names of processes on it that this one did not start); None without a reply."""

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
    """Bytes in use on the card of this uuid, else on the first; None without a reply."""

    def used(nvml: Any) -> int:
        return _used(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0))

    return _ask(used)


def own_bytes() -> int | None:
    """Bytes of this process on all GPUs; None if NVML does not tell (in containers)."""

    def held(nvml: Any) -> int | None:
        sizes = [
            int(process.usedGpuMemory)
            for index in range(nvml.nvmlDeviceGetCount())
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(index))
            if process.pid == os.getpid() and process.usedGpuMemory is not None
        ]
        return sum(sizes) if sizes else None

    return _ask(held)


def _used(nvml: Any, handle: Any) -> int:
    """Bytes that processes have on the card, as `cudaMemGetInfo` counts them.

    The first version of NVML's answer adds what driver and firmware reserve (nvml.h, `nvmlMemory_t`), 0.6 GB on an H200.
    """
    return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)


def topology(card: Card) -> str:
    """PCIe generation and width of the card's slot; empty if NVML does not say."""

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


def _ask(question: Callable[[Any], Reply]) -> Reply | None:
    """NVML's reply; None without a driver, and for any of its errors."""
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
        with contextlib.suppress(Exception):  # NVML's errors: the driver itself is gone
            if nvml is not None:
                nvml.nvmlShutdown()


def opened() -> Any:
    """NVML, initialised until this process or the last `nvmlShutdown`; None without a driver."""
    with contextlib.suppress(Exception):  # NVMLError, or no library
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return None
