"""Common accelerators as their vendors' data sheets describe them: memory, and peak speed by precision.

The table is `gpus.csv`: memory as it is sold, what programs can use of it, compute capability (none on AMD), dense TFLOP/s
with float32 sums (sheets that print them with sparsity are halved), other names, source.
Written without the sheets at hand: check a figure in its source before much depends on it. No sheet says how much
memory a program gets: it is the size that torch shows of such cards, within a tenth or two of a GiB.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autotune.core.errors import InvalidRequest

GIB = 2**30

SAME_MEMORY = 0.1
"""Share by which the memory that a device shows may differ from a card's: drivers reserve different amounts, and error
correction that can be switched off takes a sixteenth."""


@dataclass(frozen=True)
class CardSpec:
    """One accelerator."""

    name: str
    gigabytes: int  # memory as it is sold
    memory_bytes: int  # that programs can use, with contexts (`torch.cuda.get_device_properties`), ECC on with GDDR6
    flops: Mapping[str, float]  # precision that it has -> floating-point operations / second at most
    compute_capability: tuple[int, int] | None
    source: str
    other_names: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "memory_bytes": self.memory_bytes, "flops": dict(self.flops), "source": self.source}


def _card(row: Mapping[str, str]) -> CardSpec:
    major, _, minor = row["compute_capability"].partition(".")
    return CardSpec(
        row["name"],
        int(row["gigabytes"]),
        int(float(row["usable_gib"]) * GIB),
        {name: float(row[name]) * 1e12 for name in ("fp32", "tf32", "fp16", "bf16") if row[name]},
        (int(major), int(minor)) if major else None,
        row["source"],
        tuple(filter(None, row["other_names"].split("|"))),
    )


with Path(__file__).with_name("gpus.csv").open(encoding="utf-8", newline="") as _table:
    _CARDS = sorted(map(_card, csv.DictReader(_table)), key=lambda card: card.memory_bytes)

CARDS: dict[str, CardSpec] = {card.name: card for card in _CARDS}
"""Every card by name, from the smallest memory to the largest."""

_MAKERS = re.compile(r"nvidia|amd|geforce|tesla|quadro|instinct|sxm\d?|hbm\de?|tensorcoregpu|gpu")
_SIZE = re.compile(r"([1-9]\d*)gb")


def find_card(name: str) -> CardSpec:
    """The card of that name, in any spelling (case, spaces, dashes, maker). Raises InvalidRequest, also for another size."""
    plain = _plain(name)
    for spelling in (plain, f"rtx{plain}"):
        if spelling in _SPELLINGS:
            return _SPELLINGS[spelling]
        for name_of_card, card in _SPELLINGS.items():
            size = _SIZE.fullmatch(spelling.removeprefix(name_of_card)) if spelling.startswith(name_of_card) else None
            if size and int(size[1]) == card.gigabytes:
                return card
            if size:
                variants = " and ".join(f"{same.name} ({same.gigabytes} GB)" for same in _of_any_size(card))
                raise InvalidRequest(
                    f"There is no {_without_size(card)} with {size[1]} GB in the list.",
                    f"Choose one of: {variants}; or pass --memory-limit {size[1]}GiB.",
                )
    close = get_close_matches(f"rtx{plain}" if plain.isdecimal() else plain, _SPELLINGS, n=2, cutoff=0.5)
    nearest = " or ".join(dict.fromkeys(repr(_SPELLINGS[spelling].name) for spelling in close))
    raise InvalidRequest(
        f"There is no card {name!r} in the list.",
        f"{f'Did you mean {nearest}? ' if nearest else ''}Choose one of: {', '.join(CARDS)}; or pass --memory-limit 24GiB.",
    )


def card_of(device_name: str, total_memory_bytes: int) -> CardSpec | None:
    """The card of the name that torch or NVML shows, with about as much memory; None if the list has no such card.

    A slice of a card, a laptop's, or another form of it computes less than its sheet says: none of them is guessed.
    """
    try:
        named = find_card(device_name)
    except InvalidRequest:
        return None
    near = [card for card in _of_any_size(named) if abs(total_memory_bytes / card.memory_bytes - 1) <= SAME_MEMORY]
    return min(near, key=lambda card: abs(total_memory_bytes - card.memory_bytes), default=None)


def sizes_of(card: CardSpec) -> tuple[int, ...]:
    """Gigabytes of memory with which this card is sold, smallest first."""
    return tuple(sorted({variant.gigabytes for variant in _of_any_size(card)}))


def _of_any_size(card: CardSpec) -> list[CardSpec]:
    return [variant for variant in CARDS.values() if _without_size(variant) == _without_size(card)]


def _without_size(card: CardSpec) -> str:
    return card.name.removesuffix(f"{card.gigabytes}GB").rstrip(" -")


def _plain(name: str) -> str:
    return _MAKERS.sub("", re.sub(r"[\s_\-()]+", "", str(name).lower()).replace("gib", "gb"))


_SPELLINGS = {_plain(name): card for card in CARDS.values() for name in (card.name, *card.other_names)}
