"""MemoryPeak: the most memory a configuration needs, and what it is for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class MemorySplit:
    """Bytes by what they are for, as the guides split them, at the moment of the peak.

    weights: parameters and buffers, and their 16-bit copies where there are some. activations: what the backward needs,
    and the micro-batches. temporary: the rest. context: what the device's libraries take, outside torch's allocator.
    """

    weights: int = 0
    gradients: int = 0
    optimizer_states: int = 0
    activations: int = 0
    temporary: int = 0
    context: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class MemoryPeak:
    """The most memory a configuration needs, bytes.

    split: of what is allocated and the context. reserved_bytes: what the allocator holds of the device for it (on a CPU,
    which has none, the same as what is allocated). where: `forward and backward` or `optimizer step`.
    """

    split: MemorySplit
    reserved_bytes: int
    where: str

    @property
    def allocated_bytes(self) -> int:
        return self.split.total - self.split.context

    @property
    def device_bytes(self) -> int:
        """What the device shows as used: reserved and context."""
        return self.reserved_bytes + self.split.context

    def to_dict(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.device_bytes,
            "peak_allocated_bytes": self.allocated_bytes,
            "peak_reserved_bytes": self.reserved_bytes,
            "where": self.where,
            "split": self.split.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MemoryPeak":
        """What `to_dict` wrote."""
        return cls(MemorySplit(**data["split"]), data["peak_reserved_bytes"], data["where"])
