"""Peak memory of a configuration, by use."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from autotune.core.io import Serializable


@dataclass(frozen=True)
class MemorySplit(Serializable):
    """Bytes at the moment of the peak by what they are for, as Hugging Face's memory guides split them."""

    weights: int = 0  #: parameters and buffers, and their 16-bit copies if there are any
    gradients: int = 0
    optimizer_states: int = 0
    activations: int = 0  #: bytes that the backward needs, and the micro-batches
    temporary: int = 0  #: the rest
    context: int = 0  #: bytes that the device's libraries take, outside torch's allocator
    communication: int = 0  #: of several ranks: gathered weights, and copies of gradients that are exchanged

    @property
    def total(self) -> int:
        return sum(astuple(self))


@dataclass(frozen=True)
class MemoryPeak:
    """The most memory a configuration needs, bytes."""

    split: MemorySplit  #: of allocated bytes and the context
    reserved_bytes: int  #: bytes that the allocator reserves for it; on a CPU, which has none, allocated bytes
    where: str  #: `forward and backward` or `optimizer step`

    @property
    def allocated_bytes(self) -> int:
        return self.split.total - self.split.context

    @property
    def device_bytes(self) -> int:
        """Bytes that the device shows as used: reserved and context."""
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
        """The peak from the result of `to_dict`."""
        return cls(MemorySplit.from_dict(data["split"]), data["peak_reserved_bytes"], data["where"])
