"""Common accelerators as their vendors' data sheets describe them: memory, and peak speed by precision.

Written down without the sheets at hand: look a figure up in its source before much hangs on it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from autotune.errors import InvalidRequest

GIB = 2**30


@dataclass(frozen=True)
class Card:
    """One accelerator.

    data_sheet_bytes: memory as it is sold (16 GB of graphics memory are 16 GiB). memory_bytes: what is left of it where
    error correction takes its sixteenth of GDDR6. flops: precision -> floating-point operations a second at the most,
    of dense matrices, with float32 sums; without a precision that it does not have. compute_capability: None on AMD.
    """

    name: str
    data_sheet_bytes: int
    memory_bytes: int
    flops: Mapping[str, float]
    compute_capability: tuple[int, int] | None
    source: str

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "memory_bytes": self.memory_bytes, "flops": dict(self.flops), "source": self.source}


@dataclass(frozen=True)
class _Row:
    name: str
    gib: int
    capability: tuple[int, int] | None
    fp32: float
    tf32: float | None
    fp16: float
    source: str
    bf16: bool = True
    corrected: bool = False
    also: tuple[str, ...] = field(default=())


# TFLOP/s. Sheets that print the figure with sparsity are halved.
_ROWS = (
    _Row("T4", 16, (7, 5), 8.1, None, 65, "NVIDIA T4 data sheet, 2019", bf16=False, corrected=True),
    _Row("V100-16GB", 16, (7, 0), 15.7, None, 125, "NVIDIA V100 data sheet (SXM2), 2020", bf16=False, also=("V100",)),
    _Row("V100-32GB", 32, (7, 0), 15.7, None, 125, "NVIDIA V100 data sheet (SXM2), 2020", bf16=False),
    _Row("RTX 2080 Ti", 11, (7, 5), 13.4, None, 53.8, "NVIDIA Turing architecture white paper, 2018", bf16=False),
    _Row(
        "RTX 3060",
        12,
        (8, 6),
        12.7,
        12.7,
        25.5,
        "NVIDIA RTX 3060 page: 3584 cores, 1.78 GHz; rates of GA102 white paper",
    ),
    _Row("RTX 3080", 10, (8, 6), 29.8, 29.8, 59.5, "NVIDIA Ampere GA102 architecture white paper, 2021"),
    _Row("RTX 3090", 24, (8, 6), 35.6, 35.6, 71, "NVIDIA Ampere GA102 architecture white paper, 2021"),
    _Row("RTX 4090", 24, (8, 9), 82.6, 82.6, 165.2, "NVIDIA Ada architecture white paper, 2022"),
    _Row("RTX 5090", 32, (12, 0), 104.8, 104.8, 209.5, "NVIDIA RTX Blackwell architecture white paper, 2025"),
    _Row(
        "RTX A6000", 48, (8, 6), 38.7, 77.4, 154.8, "NVIDIA Ampere GA102 architecture white paper, 2021", corrected=True
    ),
    _Row("RTX 6000 Ada", 48, (8, 9), 91.1, 182.1, 364.2, "NVIDIA Ada architecture white paper, 2022", corrected=True),
    _Row("A10", 24, (8, 6), 31.2, 62.5, 125, "NVIDIA A10 data sheet, 2021", corrected=True),
    _Row("A10G", 24, (8, 6), 31.5, 35, 70, "NVIDIA A10G product brief, 2021", corrected=True),
    _Row("A40", 48, (8, 6), 37.4, 74.8, 149.7, "NVIDIA A40 data sheet, 2021", corrected=True),
    _Row("L4", 24, (8, 9), 30.3, 60, 121, "NVIDIA L4 data sheet, 2023 (halved: with sparsity)", corrected=True),
    _Row("L40S", 48, (8, 9), 91.6, 183, 362, "NVIDIA L40S data sheet, 2023", corrected=True),
    _Row("A100-40GB", 40, (8, 0), 19.5, 156, 312, "NVIDIA A100 data sheet, 2021"),
    _Row("A100-80GB", 80, (8, 0), 19.5, 156, 312, "NVIDIA A100 data sheet, 2021", also=("A100",)),
    _Row("H100 PCIe", 80, (9, 0), 51, 378, 756, "NVIDIA H100 data sheet, 2022 (halved: with sparsity)"),
    _Row(
        "H100",
        80,
        (9, 0),
        67,
        494.5,
        989.5,
        "NVIDIA H100 data sheet (SXM), 2023 (halved: with sparsity)",
        also=("H100-80GB",),
    ),
    _Row("H200", 141, (9, 0), 67, 494.5, 989.5, "NVIDIA H200 data sheet (SXM), 2024 (halved: with sparsity)"),
    _Row("B200", 180, (10, 0), 75, 1100, 2250, "NVIDIA HGX B200 data sheet, an eighth, 2025 (halved: with sparsity)"),
    _Row("MI300X", 192, None, 163.4, 653.7, 1307.4, "AMD Instinct MI300X data sheet, 2023"),
)


def _card(row: _Row) -> Card:
    speeds = {"fp32": row.fp32, "tf32": row.tf32, "fp16": row.fp16, "bf16": row.fp16 if row.bf16 else None}
    sold = row.gib * GIB
    return Card(
        row.name,
        sold,
        sold * 15 // 16 if row.corrected else sold,
        {name: speed * 1e12 for name, speed in speeds.items() if speed is not None},
        row.capability,
        row.source,
    )


CARDS: dict[str, Card] = {card.name: card for card in sorted(map(_card, _ROWS), key=lambda card: card.memory_bytes)}
"""Every card by name, from the smallest memory to the largest."""

_SPELLINGS = {name: CARDS[row.name] for row in _ROWS for name in (row.name, *row.also)}
_MAKERS = re.compile(r"nvidia|amd|geforce|tesla|quadro|instinct|sxm\d?|tensorcoregpu|gpu")


def find_card(name: str) -> Card:
    """The card of that name, however it is spelt (case, spaces, dashes, the maker); raises InvalidRequest."""
    known = {_plain(spelling): card for spelling, card in _SPELLINGS.items()}
    plain = _plain(name)
    for spelling in (
        plain,
        f"rtx{plain}",
        *(plain.removesuffix(f"{card.data_sheet_bytes // GIB}gb") for card in CARDS.values()),
    ):
        if spelling in known:
            return known[spelling]
    near = get_close_matches(plain, known, n=2, cutoff=0.5)
    nearest = " or ".join(dict.fromkeys(repr(known[one].name) for one in near))
    raise InvalidRequest(
        f"There is no card {name!r} in the list.",
        f"{f'Did you mean {nearest}? ' if nearest else ''}Known: {', '.join(CARDS)}; or give --memory 24GiB.",
    )


def _plain(name: str) -> str:
    return _MAKERS.sub("", re.sub(r"[\s_\-()]+", "", str(name).lower()).replace("gib", "gb"))
