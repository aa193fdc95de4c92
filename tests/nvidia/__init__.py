"""A stand-in for NVIDIA's libraries: cards that a test describes, read by the real pynvml through NVML's own structs."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from autotune.probe.device import nvml

SOURCE = Path(__file__).parent / "fake.c"

UUIDS = tuple(f"GPU-{letter * 8}-1111-2222-3333-{number:012d}" for number, letter in enumerate("abc"))

GIB = 1 << 30

H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "total": 80 * GIB,
    "reserved": 600,  # by driver and firmware, which the first version of the answer adds to what is used
    "used": 1000,
    "processes": "",
    "MigMode": 0,
    "EccMode": 1,
    "CurrPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "TotalEnergyConsumption": 5_000_000,
    "Temperature.0": 60,
    "TemperatureThreshold.1": 90,
    "ClockInfo.1": 1900,
    "MaxClockInfo.1": 1980,
    "MaxClockInfo.2": 2619,
    "PowerUsage": 640_000,
    "EnforcedPowerLimit": 700_000,
    "CurrentClocksEventReasons": 0,
}
"""A card in the midst of a training (values as NVML counts them: bytes, milliwatts, millijoules, MHz)."""


def compiled(folder: Path) -> Path:
    """The folder with the library, compiled into it, and in `cuda` the same as CUDA's."""
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("needs gcc")
    (folder / "cuda").mkdir()
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    (folder / "cuda" / "libcuda.so.1").symlink_to(library)
    return folder


class Machine:
    """A machine with NVIDIA's driver, in this process and those that it starts; a change is seen by the next question.

    names of values: see fake.c.
    """

    def __init__(self, libraries: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._state, self._values = state, {"driver": "580.1", "count": 0}
        self._libraries, self._monkeypatch = libraries, monkeypatch
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        monkeypatch.setenv("FAKE_NVIDIA", str(state))
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(libraries / "libnvidia-ml.so.1")))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        self._load(libraries)
        nvml._cuda_order.cache_clear()
        self.set({})

    def plug(self, *cards: Mapping[str, Any], cuda: str | None = None) -> None:
        """Have these cards, with UUIDS; cuda: their numbers in CUDA's order, which nobody can ask for without it."""
        values: dict[str, Any] = {"count": len(cards)}
        for number, card in enumerate(cards):
            values |= {f"{number}.uuid": UUIDS[number]} | {f"{number}.{name}": value for name, value in card.items()}
        if cuda is not None:
            values["cuda"] = cuda
            self._load(self._libraries, self._libraries / "cuda")
        self.set(values)

    def set(self, values: Mapping[str, Any]) -> None:
        """Answer so from now on; None: not at all."""
        self._values = {name: value for name, value in {**self._values, **values}.items() if value is not None}
        new = self._state.with_suffix(".new")
        new.write_text("".join(f"{name}={value}\n" for name, value in self._values.items()))
        new.replace(self._state)

    @property
    def calls(self) -> list[str]:
        """Names of the functions called so far, by all processes."""
        path = Path(f"{self._state}.calls")
        return path.read_text().split() if path.exists() else []

    def _load(self, *folders: Path) -> None:
        before = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
        self._monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(dict.fromkeys([*map(str, folders), *before])))
