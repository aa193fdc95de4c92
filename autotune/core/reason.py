"""Reason: a kind and its numbers; texts are made of them last."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from autotune.core.io import Serializable
from autotune.core.paths import scrubbed
from autotune.core.units import counted, format_bytes, format_seconds


class Kind(StrEnum):
    """Base of the kinds of reasons: each has a text, in braces what numbers and detail fill in (formats: see `Shown`)."""

    template: str

    def __new__(cls, value: str, template: str = "") -> Self:
        kind = str.__new__(cls, value)
        kind._value_, kind.template = value, template
        return kind


class Shown(tuple[float, ...]):
    """Numbers in a text, each once. Formats: a float's, `bytes`, `time`, `share`, a speed-up's `end`, or what is counted."""

    def __format__(self, kind: str) -> str:
        return " to ".join(dict.fromkeys(_shown(number, kind) for number in self))


def _shown(number: float, kind: str) -> str:
    match kind:
        case "bytes":
            return format_bytes(number)
        case "time":
            return format_seconds(number)
        case "share":
            return f"{number:.1%}" if number < 0.1 else f"{number:.0%}"
        case "end":
            return f" to {number:.2f}x" if math.isfinite(number) else " or more"
    return counted(int(number), kind) if kind.replace(" ", "").isalpha() else format(number, kind)


@dataclass(frozen=True)
class Reason(Serializable):
    """Base of reasons and warnings. Raises KeyError if a number is missing that its text shows."""

    kind: Kind
    numbers: Mapping[str, float] = field(default_factory=dict)  #: by name with its unit
    detail: str = ""  #: what is not a number: names of processes, another program's message

    def __post_init__(self) -> None:
        str(self)

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """Text for people, without a capital and a full stop."""
        return self.filled(self.kind.template)

    def filled(self, template: str) -> str:
        """The template with numbers and detail."""
        return template.format(detail=self.detail, **{name: Shown([value]) for name, value in self.numbers.items()})

    def public(self) -> Self:
        """The same without folders of this machine and tokens."""
        return replace(self, detail=scrubbed(self.detail))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the text for those who read JSON."""
        return super().to_dict() | {"text": self.text}
