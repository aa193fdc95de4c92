"""The list of cards: complete, consistent, and forgiving about names."""

import pytest

from autotune.core.errors import InvalidRequest
from autotune.core.gpus import CARDS, GIB, card_of, find_card

SPELLINGS = {
    "V100-16GB": ["v100"],
    "RTX 4090": ["4090", "RTX 4090 24GiB"],
    "RTX 3060": ["GeForce RTX 3060"],
    "RTX 3080 12GB": ["3080 12 GB"],
    "A100-80GB": ["a100"],
    "A100-40GB": ["A100 40 GB", "NVIDIA A100-SXM4-40GB"],
    "H100": ["H100 80GB", "NVIDIA H100 SXM5 80GB", "NVIDIA H100 80GB HBM3"],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_card_is_found_in_any_spelling(name: str) -> None:
    assert {find_card(spelling).name for spelling in SPELLINGS[name]} == {name}


@pytest.mark.parametrize(
    ("written", "near"), [("H10", "'H100'"), ("RTX 4009", "'RTX 4090'"), ("L40", "'L40S'"), ("2060", "'RTX 2080 Ti'")]
)
def test_an_unknown_name_gets_the_nearest_ones_in_one_line(written: str, near: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_card(written)
    assert near in str(caught.value)
    assert str(caught.value).partition("?")[0].count("'") <= 6, "its own name, and two others at most"
    assert "--memory-limit" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("written", "message", "sizes"),
    [
        ("V100 80GB", "no V100 with 80 GB", "V100-16GB (16 GB) and V100-32GB (32 GB)"),
        ("4090 48GB", "no RTX 4090 with 48 GB", "RTX 4090 (24 GB); or pass --memory-limit 48GiB"),
    ],
)
def test_a_size_that_the_card_has_not_is_refused(written: str, message: str, sizes: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_card(written)
    assert message in str(caught.value)
    assert sizes in str(caught.value)


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_found_and_its_figures_are_possible_and_have_a_source(name: str) -> None:
    card = find_card(name)
    assert card is CARDS[name]
    assert 8 <= card.gigabytes <= 288
    assert 0.9 <= card.memory_bytes / (card.gigabytes * GIB) < 1, "what the driver and error correction leave"
    assert 1e12 <= card.flops["fp32"] <= card.flops.get("tf32", card.flops["fp32"]) <= card.flops["fp16"] <= 3e15
    assert card.source
    old = card.compute_capability is not None and card.compute_capability < (8, 0)
    assert ("bf16" in card.flops) is ("tf32" in card.flops) is not old


@pytest.mark.parametrize(
    ("device_name", "gib", "name"),
    [
        ("NVIDIA H200", 139.72, "H200"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100"),
        ("NVIDIA GeForce RTX 3080", 9.77, "RTX 3080"),
        ("NVIDIA GeForce RTX 3080", 11.75, "RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.7, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4.75, None),
        ("NVIDIA H100 80GB HBM3", 40.0, None),
        ("AMD EPYC", 100.0, None),
    ],
)
def test_a_device_is_a_card_of_the_list_by_name_and_memory_or_none(
    device_name: str, gib: float, name: str | None
) -> None:
    card = card_of(device_name, int(gib * GIB))
    assert (card and card.name) == name
