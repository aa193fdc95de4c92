"""Which multiples suit a device, and what is said of a model's sizes that are none."""

from typing import Any

import pytest

from autotune.core.note import Note, NoteKind
from autotune.space.tensor_cores import advice, multiple
from tests.makers import cpu, gpu

GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_head": 12}
FORMATS = ("fp32", "bf16")


@pytest.mark.parametrize(
    ("capability", "precisions", "expected"),
    [
        ((9, 0), FORMATS, 64),
        ((8, 0), ("bf16_weights",), 64),
        ((7, 0), FORMATS, 8),
        ((6, 1), FORMATS, 1),
        ((9, 0), ("fp32", "tf32"), 1),
    ],
)
def test_the_multiple_follows_from_the_card_and_the_number_format(
    capability: tuple[int, int], precisions: tuple[str, ...], expected: int
) -> None:
    assert multiple(gpu(compute_capability=capability), precisions) == expected
    assert multiple(cpu(), precisions) == 1


def test_a_vocabulary_that_leaves_tiles_half_empty_is_to_be_padded() -> None:
    (note,) = advice(GPT2, gpu(), FORMATS)
    assert note == Note(NoteKind.VOCABULARY, {"size": 50257, "least": 64, "next": 50304}, "vocab_size")
    assert "pad_to_multiple_of=64" in note.text
    (older,) = advice(GPT2, gpu(compute_capability=(7, 5)), FORMATS)
    assert older.text.startswith("vocab_size 50257 is not a multiple of 8: padding it to 50264")


@pytest.mark.parametrize(
    ("config", "precisions"), [({**GPT2, "vocab_size": 50304}, FORMATS), (GPT2, ("fp32",)), ({}, FORMATS)]
)
def test_nothing_is_advised_if_nothing_is_to_be_padded(config: Any, precisions: tuple[str, ...]) -> None:
    assert advice(config, gpu(), precisions) == []
    assert advice(GPT2, cpu(), FORMATS) == []
