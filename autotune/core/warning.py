"""Warnings about the numbers of a result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autotune.core.reason import Kind, Reason, Shown


class WarningKind(Kind):
    """Kinds of reasons against trusting a number."""

    STOLEN_CORES = "stolen_cores", "the hypervisor gave {cores:.1f} cores of this machine to others"
    OTHER_PROCESSES = "other_processes", "other processes used {cores:.1f} cores meanwhile"
    SWAPPED = "swapped", "the machine swapped {bytes:bytes} meanwhile"
    CPU_CLOCK = "cpu_clock", "the CPU's clock fell by {fall:.0%} meanwhile, and ended at {mhz:.0f} MHz"
    CARD_BRAKES = "card_brakes", "the card was held back: {detail}"
    CARD_CLOCK = "card_clock", "the card's SM clock fell by {fall:.0%} meanwhile, and ended at {mhz:.0f} MHz"
    SHARED_DEVICE = "shared_device", "another process on the device: {detail}"
    KILLED = "killed", "killed or stopped from outside"
    FEW_STEPS = "few_steps", "only {steps:timed step}"
    WIDE_INTERVAL = "wide_interval", "the 95% interval is {width:.0%} wide"
    RECOMPILED = "recompiled", "{graphs:graph} compiled anew in the timed steps"
    FASTER = "faster", "the second half of the timed steps ran {change:.0%} faster"
    SLOWER = "slower", "the second half of the timed steps ran {change:.0%} slower"
    LOSSES = "losses", "losses {detail}"
    HELD_MEMORY = "held_memory", "this process still holds {bytes:bytes} on the device ({detail}): counted as not free"
    UNUSED_GPU = "unused_gpu", "the CPU was measured: {detail}"
    UNREADABLE_FILE = "unreadable_file", "the file {detail} and is left out; the same search makes it again"


OF_THE_MACHINE = [*WarningKind][: [*WarningKind].index(WarningKind.FEW_STEPS)]
"""A quieter machine cures these."""


@dataclass(frozen=True)
class ResultWarning(Reason):
    """A reason not to trust a number; of several of a kind `numbers` are the least of each, `most` the largest."""

    kind: WarningKind
    most: Mapping[str, float] = field(default_factory=dict)
    of: str = ""  #: whose number it is, if not the answer's

    def filled(self, template: str) -> str:
        """The template with numbers, those that differ as a range: `1.7 to 1.9 cores`."""
        ranges = {name: Shown([least, self.most.get(name, least)]) for name, least in self.numbers.items()}
        return f"{self.of}{': ' if self.of else ''}{template.format(detail=self.detail, **ranges)}"


def merged(warnings: Iterable[ResultWarning]) -> tuple[ResultWarning, ...]:
    """One warning for all that differ in their numbers alone, with the least and the largest of each."""
    alike: dict[tuple[str, ...], list[ResultWarning]] = {}
    for warning in warnings:
        alike.setdefault((warning.kind, warning.detail, warning.of), []).append(warning)
    return tuple(_range(group) for group in alike.values())


def _range(group: list[ResultWarning]) -> ResultWarning:
    first = group[0]
    numbers = {name: min(warning.numbers[name] for warning in group) for name in first.numbers}
    most = {name: max({**warning.numbers, **warning.most}[name] for warning in group) for name in first.numbers}
    return replace(first, numbers=numbers, most={} if most == numbers else most)
