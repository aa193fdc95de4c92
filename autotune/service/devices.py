"""Devices that the service lends to searches, each to one at a time."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.core import InvalidRequest
from autotune.probe.device.machine import cpu_name
from autotune.probe.device.nvml import choose_device, visible_cards


@dataclass(frozen=True)
class Device:
    """name: as `--device` takes it; card: the GPU's or the CPU's name."""

    name: str
    card: str


class Devices:
    """All devices of this server. names: as `cpu` or `cuda:1`; by default all GPUs, on a machine without one its CPU.

    Raises InvalidRequest for a device that is not there, or that is named twice.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        names = names or [f"cuda:{index}" for index, _ in enumerate(visible_cards())] or ["cpu"]
        names = ["cuda:0" if name == "cuda" else name for name in names]
        if wrong := [name for name in names if names.count(name) > 1 or not re.fullmatch(r"cpu|cuda:\d+", name)]:
            raise InvalidRequest(f"{wrong[0]!r} is no device, or named twice.", "Use cpu, cuda:0, cuda:1, each once.")
        cards = {name: choose_device(name) for name in names}
        self.devices = tuple(Device(name, card.name if card else cpu_name()) for name, card in cards.items())
        self.names = tuple(names)

    def free(self, lent: Iterable[str | None]) -> list[str]:
        """Names of the devices that are not among these, which are lent."""
        return [name for name in self.names if name not in {*lent}]
