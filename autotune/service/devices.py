"""Devices that the service lends to searches, each to one at a time."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from autotune.core import InvalidRequest
from autotune.probe.device.machine import cpu_name
from autotune.probe.device.nvml import choose_device, visible_cards


class Devices:
    """All devices of this server. names: as `cpu` or `cuda:1`; by default all GPUs, or the CPU of a machine without GPUs.

    Raises InvalidRequest for a missing device, or one that is named twice.
    """

    is_lasting = True  # none comes or goes while the server runs

    def __init__(self, names: Sequence[str] | None = None) -> None:
        names = names or [f"cuda:{index}" for index, _ in enumerate(visible_cards())] or ["cpu"]
        names = ["cuda:0" if name == "cuda" else name for name in names]
        if wrong := [name for name in names if names.count(name) > 1 or not re.fullmatch(r"cpu|cuda:\d+", name)]:
            raise InvalidRequest(
                f"{wrong[0]!r} is not a device, or named twice.", "Use cpu, cuda:0, cuda:1, each once."
            )
        cards = {name: choose_device(name) for name in names}
        self.names = tuple(names)
        self.cards = {name: card.name if card else cpu_name() for name, card in cards.items()}
        self._uuids = {name: card.uuid for name, card in cards.items() if card}

    def known_cards(self) -> dict[str, str]:
        """`cards`."""
        return self.cards

    def free(self, lent: Iterable[str | None]) -> list[str]:
        """Names of the devices that are not among these, which are lent: each as `lend` joins them."""
        away = {name for names in lent if names for name in names.split(JOIN)}
        return [name for name in self.names if name not in away]

    def problem(self) -> str:
        """Reason why nothing can be lent; empty if there is none."""
        return "" if self.names else "none"

    def close(self) -> None:
        """Ends nothing: there is no connection."""

    def options(self, lent: str, _wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a search for the devices that it gets; a CPU is shared as its request says."""
        names = lent.split(JOIN)
        if names == ["cpu"]:
            return {"device": "cpu"}
        return {"device": "cuda", "devices": len(names)}

    def variables(self, lent: str) -> dict[str, str]:
        """Variables that show the process of a search its GPUs alone, whatever its space requests."""
        uuids = [self._uuids[name] for name in lent.split(JOIN) if name in self._uuids]
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if uuids else {}

    def cores(self, lent: str) -> list[int]:
        """The cores of a search: equal shares if several GPUs are lent, all for a CPU."""
        cores, gpus = sorted(os.sched_getaffinity(0)), [name for name in self.names if name != "cpu"]
        each = len(cores) // max(1, len(gpus))
        own = [gpus.index(name) for name in lent.split(JOIN) if name in gpus]
        return [core for index in own for core in cores[index * each : (index + 1) * each]] or cores


JOIN = ","
"""Separator of the names of devices that one search gets."""


def kinds(wanted: Mapping[str, Any], cards: Mapping[str, str]) -> list[tuple[list[str], int]]:
    """(devices of one card, number of them that the search wants), for each suitable card with this number of devices.

    wanted: a request with `device`, `devices` and `card`. cards: of all devices (name -> card). A CPU is one device, which the
    search shares out itself.
    """
    like: dict[tuple[bool, str], list[str]] = {}
    for name, card in cards.items():
        named = wanted.get("device", "auto") in matching_options(name)
        if named and (wanted.get("card") or "").casefold() in card.casefold():
            like.setdefault((name == "cpu", card), []).append(name)
    count = wanted.get("devices", 1)
    wants = [
        (names, 1 if is_cpu else len(names) if count == "all" else int(count)) for (is_cpu, _), names in like.items()
    ]
    return [(names, number) for names, number in wants if number <= len(names)]


def check_devices(wanted: Mapping[str, Any], cards: Mapping[str, str], most: int | None = None) -> None:
    """Raise InvalidRequest if no device (name -> card) is as requested, or if there are too few. most: of the caller's token."""
    device, card = wanted["device"], wanted["card"]
    if not kinds({"device": device}, cards):
        raise InvalidRequest(f"This server lends no {device}.", f"Choose one of: {', '.join(cards)}.", "device")
    able = kinds({"device": device, "card": card}, cards)
    if not able:
        have = ", ".join(dict.fromkeys(cards.values()))
        raise InvalidRequest(f"This server lends no {card!r} as {device}.", f"Choose one of: {have}.", "card")
    if not (counts := [count for _, count in kinds(wanted, cards)]):
        there, have = max(len(names) for names, _ in able), ", ".join(f"{name} ({own})" for name, own in cards.items())
        message = f"A search can get {there} device(s) of a kind here, not {wanted['devices']}."
        raise InvalidRequest(message, f"Choose from {have}.", "devices")
    if most is not None and min(counts) > most:
        raise InvalidRequest(f"Your token may use {most} device(s) at once.", "Ask an admin for more.", "devices")


@dataclass(frozen=True)
class Waiting:
    """A queued search. wanted: its request; room: devices that its token may have more; length: seconds, None if unknown."""

    wanted: Mapping[str, Any]
    room: float = inf
    length: Callable[[], float | None] = lambda: None
    row: Any = None


def choose(
    queue: Iterable[Waiting],
    cards: Mapping[str, str],
    free: Collection[str],
    ends: Mapping[str, float | None] = {},
) -> tuple[Waiting, str] | None:
    """(the search that starts now, its devices, joined); None if none can. The first in the queue that has its devices.

    A search with too few devices gets a reservation: of those that are free and those that end first, from the moment at which
    the last of them is expected to be free. Searches after it may use them until then, if they are expected to end before it
    (Lifka, The ANL/IBM SP scheduling system, 1995). Unless all ends are known, they may not.

    cards: of all devices (name -> card). ends: seconds until a lent device is expected to be free, None if unknown or overdue.
    """
    reserved: dict[str, float] = {}  # name -> seconds from now

    def until(name: str) -> float:
        end = 0.0 if name in free else ends.get(name)
        return inf if end is None or name in reserved else end

    for waiting in queue:
        able = [(names, count) for names, count in kinds(waiting.wanted, cards) if count <= waiting.room]
        expected = waiting.length() if reserved else None
        seconds = inf if expected is None else expected
        for names, count in able:
            usable = [name for name in names if name in free and (name not in reserved or seconds <= reserved[name])]
            if len(usable) >= count:
                return waiting, JOIN.join(sorted(usable, key=reserved.__contains__)[:count])
        plans = []
        for names, count in able:
            first = sorted(names, key=until)[:count]
            plans.append((until(first[-1]), sum(name not in free for name in first), first))
        if plans:
            start, _, first = min(plans, key=lambda plan: plan[:2])
            for name in first:  # no search is expected to end before an unknown moment
                reserved.setdefault(name, start if start < inf else 0.0)
        if not any(reserved.get(name, inf) for name in free):
            break
    return None


def matching_options(device: str) -> tuple[str, ...]:
    """Values of the option `device` that this device satisfies."""
    return ("auto", device, re.split("[:@]", device)[0])
