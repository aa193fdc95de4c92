"""Devices that the service lends to searches, each to one at a time."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from autotune.core import InvalidRequest
from autotune.probe.device.machine import cpu_name
from autotune.probe.device.nvml import choose_device, visible_cards


@dataclass(frozen=True)
class Device:
    """name: as `--device` takes it; card: the GPU's or the CPU's name."""

    name: str
    card: str


@dataclass(frozen=True)
class Devices:
    """All devices of this server."""

    devices: tuple[Device, ...]

    @classmethod
    def named(cls, names: Sequence[str] | None = None) -> Self:
        """The devices of these names (`cpu`, `cuda:1`); by default all GPUs, on a machine without one its CPU.

        Raises InvalidRequest for one that is not there, or that is named twice.
        """
        names = names or [f"cuda:{index}" for index, _ in enumerate(visible_cards())] or ["cpu"]
        names = ["cuda:0" if name == "cuda" else name for name in names]
        if wrong := [name for name in names if names.count(name) > 1 or not re.fullmatch(r"cpu|cuda:\d+", name)]:
            raise InvalidRequest(f"{wrong[0]!r} is no device, or named twice.", "Use cpu, cuda:0, cuda:1, each once.")
        cards = {name: choose_device(name) for name in names}
        return cls(tuple(Device(name, card.name if card else cpu_name()) for name, card in cards.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    def free(self, lent: Iterable[str | None]) -> list[str]:
        """Names of the devices that are not among these, which are lent."""
        taken = set(lent)
        return [name for name in self.names if name not in taken]
