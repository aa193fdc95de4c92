"""Common accelerators as their vendors' data sheets describe them: memory, and peak speed by precision.

Written down without the sheets at hand: look a figure up in its source before much hangs on it. No sheet says how much
of the memory a program gets: that is what torch shows of such cards, in a tenth or two of a GiB as much as the driver leaves.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from autotune.core.errors import InvalidRequest

GIB = 2**30

SAME_MEMORY = 0.1
"""Share by which the memory that a device shows may differ from a card's: drivers keep other amounts for themselves, and error
correction that can be switched off a sixteenth."""


@dataclass(frozen=True)
class Card:
    """One accelerator.

    gigabytes: memory as it is sold. memory_bytes: what programs can use of it, contexts included, as torch shows it
    (`torch.cuda.get_device_properties`); on cards with GDDR6 for servers with error correction, which takes a sixteenth.
    flops: precision -> floating-point operations a second at the most, of dense matrices, with float32 sums; without a
    precision that it does not have. compute_capability: None on AMD.
    """

    name: str
    gigabytes: int
    memory_bytes: int
    flops: Mapping[str, float]
    compute_capability: tuple[int, int] | None
    source: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "memory_bytes": self.memory_bytes, "flops": dict(self.flops), "source": self.source}


@dataclass(frozen=True)
class _Row:
    name: str
    gigabytes: int
    usable_gib: float
    capability: tuple[int, int] | None
    fp32: float
    tf32: float | None
    fp16: float
    source: str
    bf16: bool = True
    also: tuple[str, ...] = field(default=())


# TFLOP/s. Sheets that print the figure with sparsity are halved.
_ROWS = (
    _Row("T4", 16, 14.56, (7, 5), 8.1, None, 65, "NVIDIA T4 data sheet, 2019", bf16=False),
    _Row(
        "V100-16GB",
        16,
        15.77,
        (7, 0),
        15.7,
        None,
        125,
        "NVIDIA V100 data sheet (SXM2), 2020",
        bf16=False,
        also=("V100",),
    ),
    _Row("V100-32GB", 32, 31.74, (7, 0), 15.7, None, 125, "NVIDIA V100 data sheet (SXM2), 2020", bf16=False),
    _Row(
        "RTX 2080 Ti", 11, 10.73, (7, 5), 13.4, None, 53.8, "NVIDIA Turing architecture white paper, 2018", bf16=False
    ),
    _Row(
        "RTX 3060",
        12,
        11.75,
        (8, 6),
        12.7,
        12.7,
        25.5,
        "NVIDIA RTX 3060 page: 3584 cores, 1.78 GHz; rates of GA102 white paper",
    ),
    _Row("RTX 3080", 10, 9.77, (8, 6), 29.8, 29.8, 59.5, "NVIDIA Ampere GA102 architecture white paper, 2021"),
    _Row(
        "RTX 3080 12GB",
        12,
        11.75,
        (8, 6),
        30.6,
        30.6,
        61.3,
        "NVIDIA RTX 3080 page: 8960 cores, 1.71 GHz; rates of GA102 white paper",
    ),
    _Row("RTX 3090", 24, 23.69, (8, 6), 35.6, 35.6, 71, "NVIDIA Ampere GA102 architecture white paper, 2021"),
    _Row("RTX 4090", 24, 23.64, (8, 9), 82.6, 82.6, 165.2, "NVIDIA Ada architecture white paper, 2022"),
    _Row("RTX 5090", 32, 31.36, (12, 0), 104.8, 104.8, 209.5, "NVIDIA RTX Blackwell architecture white paper, 2025"),
    _Row("RTX A6000", 48, 44.4, (8, 6), 38.7, 77.4, 154.8, "NVIDIA Ampere GA102 architecture white paper, 2021"),
    _Row(
        "RTX 6000 Ada",
        48,
        44.4,
        (8, 9),
        91.1,
        182.1,
        364.2,
        "NVIDIA Ada architecture white paper, 2022",
        also=("RTX 6000 Ada Generation",),
    ),
    _Row("A10", 24, 22.0, (8, 6), 31.2, 62.5, 125, "NVIDIA A10 data sheet, 2021"),
    _Row("A10G", 24, 22.0, (8, 6), 31.5, 35, 70, "NVIDIA A10G product brief, 2021"),
    _Row("A40", 48, 44.4, (8, 6), 37.4, 74.8, 149.7, "NVIDIA A40 data sheet, 2021"),
    _Row("L4", 24, 22.0, (8, 9), 30.3, 60, 121, "NVIDIA L4 data sheet, 2023 (halved: with sparsity)"),
    _Row("L40S", 48, 44.4, (8, 9), 91.6, 183, 362, "NVIDIA L40S data sheet, 2023"),
    _Row("A100-40GB", 40, 39.4, (8, 0), 19.5, 156, 312, "NVIDIA A100 data sheet, 2021", also=("A100-PCIE-40GB",)),
    _Row(
        "A100-80GB", 80, 79.15, (8, 0), 19.5, 156, 312, "NVIDIA A100 data sheet, 2021", also=("A100", "A100 80GB PCIe")
    ),
    _Row("H100 PCIe", 80, 79.1, (9, 0), 51, 378, 756, "NVIDIA H100 data sheet, 2022 (halved: with sparsity)"),
    _Row("H100", 80, 79.1, (9, 0), 67, 494.5, 989.5, "NVIDIA H100 data sheet (SXM), 2023 (halved: with sparsity)"),
    _Row("H200", 141, 139.8, (9, 0), 67, 494.5, 989.5, "NVIDIA H200 data sheet (SXM), 2024 (halved: with sparsity)"),
    _Row(
        "B200",
        180,
        178.3,
        (10, 0),
        75,
        1100,
        2250,
        "NVIDIA HGX B200 data sheet, an eighth, 2025 (halved: with sparsity)",
    ),
    _Row("MI300X", 192, 191.98, None, 163.4, 653.7, 1307.4, "AMD Instinct MI300X data sheet, 2023"),
)


def _card(row: _Row) -> Card:
    speeds = {"fp32": row.fp32, "tf32": row.tf32, "fp16": row.fp16, "bf16": row.fp16 if row.bf16 else None}
    return Card(
        row.name,
        row.gigabytes,
        int(row.usable_gib * GIB),
        {name: speed * 1e12 for name, speed in speeds.items() if speed is not None},
        row.capability,
        row.source,
    )


CARDS: dict[str, Card] = {card.name: card for card in sorted(map(_card, _ROWS), key=lambda card: card.memory_bytes)}
"""Every card by name, from the smallest memory to the largest."""

_MAKERS = re.compile(r"nvidia|amd|geforce|tesla|quadro|instinct|sxm\d?|hbm\de?|tensorcoregpu|gpu")
_SIZE = re.compile(r"([1-9]\d*)gb")


def find_card(name: str) -> Card:
    """The card of that name, however it is spelt (case, spaces, dashes, the maker); a size in it must be the card's own.

    Raises InvalidRequest.
    """
    plain = _plain(name)
    for spelling in (plain, f"rtx{plain}"):
        if spelling in _SPELLINGS:
            return _SPELLINGS[spelling]
        for known, card in _SPELLINGS.items():
            size = _SIZE.fullmatch(spelling.removeprefix(known)) if spelling.startswith(known) else None
            if size and int(size[1]) == card.gigabytes:
                return card
            if size:
                raise _no_such_size(card, size[1])
    near = get_close_matches(plain, _SPELLINGS, n=2, cutoff=0.5)
    nearest = " or ".join(dict.fromkeys(repr(_SPELLINGS[one].name) for one in near))
    raise InvalidRequest(
        f"There is no card {name!r} in the list.",
        f"{f'Did you mean {nearest}? ' if nearest else ''}Known: {', '.join(CARDS)}; or give --memory-limit 24GiB.",
    )


def card_of(device_name: str, total_memory_bytes: int) -> Card | None:
    """The card that torch or NVML calls so and that has about as much memory; None where the list has none of both.

    A slice of a card, a laptop's, or another form of it computes less than its sheet says: none of them is guessed.
    """
    try:
        named = find_card(device_name)
    except InvalidRequest:
        return None
    alike = [card for card in CARDS.values() if _without_size(card) == _without_size(named)]
    near = [card for card in alike if abs(total_memory_bytes / card.memory_bytes - 1) <= SAME_MEMORY]
    return min(near, key=lambda card: abs(total_memory_bytes - card.memory_bytes), default=None)


def _no_such_size(card: Card, size: str) -> InvalidRequest:
    alike = [one for one in CARDS.values() if _without_size(one) == _without_size(card)]
    known = " and ".join(f"{one.name} ({one.gigabytes} GB)" for one in alike)
    return InvalidRequest(
        f"There is no {_without_size(card)} with {size} GB in the list.",
        f"Known: {known}; or give --memory-limit {size}GiB.",
    )


def sizes_of(card: Card) -> tuple[int, ...]:
    """Gigabytes of memory with which this card is sold, smallest first."""
    return tuple(sorted({one.gigabytes for one in CARDS.values() if _without_size(one) == _without_size(card)}))


def _without_size(card: Card) -> str:
    return card.name.removesuffix(f"{card.gigabytes}GB").rstrip(" -")


def _plain(name: str) -> str:
    return _MAKERS.sub("", re.sub(r"[\s_\-()]+", "", str(name).lower()).replace("gib", "gb"))


_SPELLINGS = {_plain(name): CARDS[row.name] for row in _ROWS for name in (row.name, *row.also)}
