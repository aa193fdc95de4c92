"""Reason: a kind and its numbers; texts are made of them last."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.core.io import Serializable


@dataclass(frozen=True)
class Reason(Serializable):
    """Base of reasons and warnings: each has an enum of its kinds, and a text by kind."""

    kind: StrEnum
    numbers: Mapping[str, float] = field(default_factory=dict)  #: by name with its unit
    detail: str = ""  #: what is no number: names of processes, another program's message

    @property
    def text(self) -> str:
        """For people: without a capital and a full stop."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the text for those who read JSON."""
        return super().to_dict() | {"text": self.text}
