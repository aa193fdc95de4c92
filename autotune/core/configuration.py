"""Configuration: one way of training, and what a trial proposes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = str | int | float | bool

RANKS = "data_parallel_size"
"""The setting that is a size of the configuration too: among `settings` where it is one of the search space."""


@dataclass(frozen=True)
class Configuration:
    """One way of training whose global batch size is exact by construction.

    micro_batch_size: samples in one forward and backward of one rank.
    gradient_accumulation_steps: micro-steps in one optimizer step.
    data_parallel_size: ranks, each with its own micro-batches.
    settings: (name, value) of every other setting of the search space, in the space's order.
    """

    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int = 1
    settings: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        sizes = (self.micro_batch_size, self.gradient_accumulation_steps, self.data_parallel_size)
        if any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ValueError(f"sizes of a configuration are whole numbers from 1, not {sizes}")
        if (said := dict(self.settings).get(RANKS, self.data_parallel_size)) != self.data_parallel_size:
            raise ValueError(f"{self.data_parallel_size} rank(s) and a setting that says {said}")

    @classmethod
    def exact(
        cls,
        global_batch_size: int,
        micro_batch_size: int,
        settings: Mapping[str, Value],
        data_parallel_size: int | None = None,
    ) -> "Configuration":
        """The configuration of this micro-batch size whose global batch size is exactly the target.

        data_parallel_size: default what the settings say, else 1. Raises ValueError where micro-batch x data-parallel size
        does not divide the target.
        """
        if data_parallel_size is None:
            data_parallel_size = int(settings.get(RANKS, 1))
        at_once = micro_batch_size * data_parallel_size
        accumulation, rest = divmod(global_batch_size, at_once) if at_once else (0, 0)
        if rest or accumulation < 1:
            raise ValueError(
                f"a micro-batch of {micro_batch_size} on {data_parallel_size} rank(s) "
                f"does not divide a global batch of {global_batch_size}"
            )
        return cls(micro_batch_size, accumulation, data_parallel_size, tuple(settings.items()))

    @property
    def global_batch_size(self) -> int:
        """Samples in one optimizer step over all ranks."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel_size

    @property
    def values(self) -> dict[str, Value]:
        """Every setting's value by name, the micro-batch size among them."""
        return {"micro_batch_size": self.micro_batch_size, **dict(self.settings)}

    def __str__(self) -> str:
        return self.unlike(None)

    def unlike(self, base: "Configuration | None") -> str:
        """Its sizes, and every setting whose value is not the base's."""
        ranks = f" x {self.data_parallel_size} ranks" if self.data_parallel_size > 1 else ""
        said = [f"{self.micro_batch_size} x {self.gradient_accumulation_steps}{ranks}"]
        known = base.values if base is not None else {}
        said += [f"{name} {word(value)}" for name, value in self.settings if name != RANKS and known.get(name) != value]
        return ", ".join(said)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "micro_batch_size": self.micro_batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "data_parallel_size": self.data_parallel_size,
            "levers": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Configuration":
        """The configuration that `to_dict` made plain. Raises KeyError or ValueError for other data."""
        return cls(
            data["micro_batch_size"],
            data["gradient_accumulation_steps"],
            data["data_parallel_size"],
            tuple(data["levers"].items()),
        )


def word(value: Value) -> str:
    """A setting's value for people."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
