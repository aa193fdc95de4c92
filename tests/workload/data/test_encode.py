"""Texts of any length as samples."""

from typing import Any

import pytest
from transformers import BertConfig

from autotune.workload.data.columns import Columns
from autotune.workload.data.encode import LONG_TEXT, Encoder
from autotune.workload.data.tokenizer import train_tokenizer


class Counted:
    """A tokenizer that notes the length of the longest text that it gets."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.longest = inner, 0

    def __call__(self, texts: Any, **options: Any) -> Any:
        self.longest = max(self.longest, *map(len, [texts] if isinstance(texts, str) else texts))
        return self.inner(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["a b c"], BertConfig(vocab_size=300))


def encoded(text: str, tokenizer: Any) -> list[int]:
    (ids,) = Encoder("causal-lm", Columns("text"), tokenizer, 16)({"text": [text]})["input_ids"]
    return list(ids)


def test_of_a_very_long_text_only_what_makes_a_sample_is_tokenised(tokenizer: Any) -> None:
    counted = Counted(tokenizer)
    assert encoded("a b " * LONG_TEXT, counted) == encoded("a b " * 100, tokenizer)
    assert counted.longest == LONG_TEXT
