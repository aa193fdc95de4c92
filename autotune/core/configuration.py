"""Configuration of a training: its sizes and the values of its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.core.units import counted

Value = str | int | float | bool

RANKS = "data_parallel_size"
"""The setting that is a size of the configuration too: among `settings` if the search space has it."""

SIZES = ("micro_batch_size", "gradient_accumulation_steps", RANKS)
"""Sizes of a configuration."""


@dataclass(frozen=True)
class Configuration:
    """One way of training, with a global batch size that is exact by construction."""

    micro_batch_size: int  #: samples in one forward and backward of one rank
    gradient_accumulation_steps: int  #: micro-steps in one optimizer step
    data_parallel_size: int = 1  #: ranks, each with different micro-batches
    settings: tuple[tuple[str, Value], ...] = ()  #: name and value of all other settings, in the search space's order

    def __post_init__(self) -> None:
        sizes = (self.micro_batch_size, self.gradient_accumulation_steps, self.data_parallel_size)
        if any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ValueError(f"sizes of a configuration are whole numbers from 1, not {sizes}")
        if (ranks := dict(self.settings).get(RANKS, self.data_parallel_size)) != self.data_parallel_size:
            raise ValueError(f"{counted(self.data_parallel_size, 'rank')} and a setting that says {ranks}")

    @classmethod
    def exact(
        cls,
        global_batch_size: int,
        micro_batch_size: int,
        settings: Mapping[str, Value],
        data_parallel_size: int | None = None,
    ) -> "Configuration":
        """The configuration of this micro-batch size and exactly this global batch size.

        data_parallel_size: by default the settings', else 1. Raises ValueError if micro-batch x ranks does not divide it.
        """
        if data_parallel_size is None:
            data_parallel_size = int(settings.get(RANKS, 1))
        micro_step = micro_batch_size * data_parallel_size
        accumulation, rest = divmod(global_batch_size, micro_step) if micro_step else (0, 0)
        if rest or accumulation < 1:
            raise ValueError(
                f"a micro-batch of {micro_batch_size} on {counted(data_parallel_size, 'rank')} "
                f"does not divide a global batch of {global_batch_size}"
            )
        return cls(micro_batch_size, accumulation, data_parallel_size, tuple(settings.items()))

    @property
    def global_batch_size(self) -> int:
        """Samples in one optimizer step over all ranks."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel_size

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by name."""
        return {name: getattr(self, name) for name in SIZES}

    @property
    def sizes_and_settings(self) -> dict[str, Value]:
        """Sizes and settings by name."""
        return {**self.sizes, **dict(self.settings)}

    @property
    def values(self) -> dict[str, Value]:
        """Every setting's value by name, the micro-batch size first."""
        return {"micro_batch_size": self.micro_batch_size, **dict(self.settings)}

    def __str__(self) -> str:
        return self.unlike(None)

    def unlike(self, base: "Configuration | None") -> str:
        """Its sizes, and the settings with another value than the base's, as text."""
        ranks = f" x {self.data_parallel_size} ranks" if self.data_parallel_size > 1 else ""
        same = base.values if base is not None else {}
        values = [f"{name} {word(value)}" for name, value in self.settings if name != RANKS and same.get(name) != value]
        return ", ".join([f"{self.micro_batch_size} x {self.gradient_accumulation_steps}{ranks}", *values])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**self.sizes, "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Configuration":
        """The configuration from the result of `to_dict`. Raises KeyError or ValueError for other data."""
        micro, accumulation, ranks = (data[name] for name in SIZES)
        return cls(micro, accumulation, ranks, tuple(data["settings"].items()))


def word(value: Value) -> str:
    """A setting's value as text."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
