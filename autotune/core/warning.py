"""Warnings about the numbers of a result."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from autotune.core.reason import Reason
from autotune.core.units import counted, format_bytes


class WarningKind(StrEnum):
    """What speaks against a number."""

    STOLEN_CORES = "stolen_cores"
    OTHER_PROCESSES = "other_processes"
    SWAPPED = "swapped"
    CPU_HEAT = "cpu_heat"
    CPU_CLOCK = "cpu_clock"
    CARD_BRAKES = "card_brakes"
    CARD_CLOCK = "card_clock"
    CARD_HEAT = "card_heat"
    SHARED_DEVICE = "shared_device"
    HELD_MEMORY = "held_memory"
    KILLED = "killed"
    FEW_STEPS = "few_steps"
    WIDE_INTERVAL = "wide_interval"
    RECOMPILED = "recompiled"
    FASTER = "faster"
    SLOWER = "slower"
    LOSSES = "losses"
    UNUSED_GPU = "unused_gpu"
    UNREADABLE_FILE = "unreadable_file"


_HALVES = "the second half of the timed steps ran {change:.0%}"
_TEXTS = {
    WarningKind.STOLEN_CORES: "the hypervisor gave {cores:.1f} cores of this machine to others",
    WarningKind.OTHER_PROCESSES: "other processes used {cores:.1f} cores meanwhile",
    WarningKind.SWAPPED: "the machine swapped {bytes:bytes} meanwhile",
    WarningKind.CPU_HEAT: "the CPU was throttled for heat {throttles:time}",
    WarningKind.CPU_CLOCK: "the CPU's clock fell by {fall:.0%} meanwhile, to {mhz:.0f} MHz",
    WarningKind.CARD_BRAKES: "the card was held back: {detail}",
    WarningKind.CARD_CLOCK: "the card's SM clock fell by {fall:.0%} meanwhile, to {mhz:.0f} MHz",
    WarningKind.CARD_HEAT: "the card was at {temperature_c:.0f} °C, and slows down from {limit_c:.0f} °C",
    WarningKind.SHARED_DEVICE: "another process on the device: {detail}",
    WarningKind.HELD_MEMORY: "this process still holds {bytes:bytes} on the device ({detail}): counted as not free",
    WarningKind.KILLED: "killed from outside",
    WarningKind.FEW_STEPS: "only {steps:timed step}",
    WarningKind.WIDE_INTERVAL: "the 95% interval is {width:.0%} wide",
    WarningKind.RECOMPILED: "{graphs:graph} compiled anew in the timed steps",
    WarningKind.FASTER: f"{_HALVES} faster",
    WarningKind.SLOWER: f"{_HALVES} slower",
    WarningKind.LOSSES: "losses {detail}",
    WarningKind.UNUSED_GPU: "the CPU was measured: {detail}",
    WarningKind.UNREADABLE_FILE: "the file {detail} and is left out; the same search makes it again",
}

OF_THE_MACHINE = frozenset(WarningKind) - {
    *(WarningKind.HELD_MEMORY, WarningKind.FEW_STEPS, WarningKind.WIDE_INTERVAL, WarningKind.RECOMPILED),
    *(WarningKind.FASTER, WarningKind.SLOWER, WarningKind.LOSSES, WarningKind.UNUSED_GPU, WarningKind.UNREADABLE_FILE),
}
"""A quieter machine cures these."""


@dataclass(frozen=True)
class ResultWarning(Reason):
    """A reason not to trust a number; of several of a kind `numbers` are the least of each, `most` the largest."""

    kind: WarningKind
    most: Mapping[str, float] = field(default_factory=dict)
    of: str = ""  #: whose number it is, if not the answer's

    @property
    def text(self) -> str:
        """For people; a number that differs is a range: `1.7 to 1.9 cores`."""
        ranges = {name: _Range((least, self.most.get(name, least))) for name, least in self.numbers.items()}
        text = _TEXTS[self.kind].format(detail=self.detail, **ranges)
        return f"{self.of}: {text}" if self.of else text


class _Range(tuple[float, ...]):
    """Numbers as a text, each once. Its format is that of a float, `bytes`, or what is counted."""

    def __format__(self, kind: str) -> str:
        show: Callable[[float], str] = format_bytes if kind == "bytes" else lambda number: format(number, kind)
        if kind.replace(" ", "").isalpha() and kind != "bytes":
            show = lambda number: counted(int(number), kind)  # noqa: E731
        return " to ".join(dict.fromkeys(map(show, self)))


def merged(warnings: Iterable[ResultWarning]) -> tuple[ResultWarning, ...]:
    """One warning for all that differ in their numbers alone, with the least and the largest of each."""
    alike: dict[tuple[str, ...], list[ResultWarning]] = {}
    for warning in warnings:
        alike.setdefault((warning.kind, warning.detail, warning.of), []).append(warning)
    return tuple(_one(group) for group in alike.values())


def _one(group: list[ResultWarning]) -> ResultWarning:
    first = group[0]
    if all(warning == first for warning in group):
        return first
    numbers = {name: min(warning.numbers[name] for warning in group) for name in first.numbers}
    most = {name: max({**warning.numbers, **warning.most}[name] for warning in group) for name in first.numbers}
    return replace(first, numbers=numbers, most=most)
