"""Tensor Cores: the multiples of sizes that fill them, and advice on a model's sizes that do not."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autotune.core import Environment, Value
from autotune.core.note import Note, NoteKind
from autotune.space.settings.precision import ALIKE

SIXTEEN_BITS = ("fp16", "bf16", *ALIKE)
"""Precisions whose matrix products have factors of 16 bits."""

SMALLEST, LARGEST = 8, 64
"""Multiples for factors of 16 bits, and from A100 on for the largest tiles: 16 bytes, and 128 (NVIDIA, Matrix Multiplication
Background User's Guide, "Requirements to use Tensor Cores"; the guides say the same of batch sizes and vocabularies)."""

AMPERE = (8, 0)

_VOCABULARY = "vocab_size"
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "intermediate_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")


def multiple(environment: Environment, precisions: Collection[Value]) -> int:
    """The multiple that suits the device for products of these precisions; 1 if none does."""
    if environment.is_cpu or not {*precisions} & {*SIXTEEN_BITS}:
        return 1
    capability = environment.compute_capability or (0, 0)
    if capability < (7, 0):
        return 1  # before Volta there are no Tensor Cores
    return LARGEST if capability >= AMPERE else SMALLEST


def advice(model_config: Mapping[str, Any], environment: Environment, precisions: Collection[Value]) -> list[Note]:
    """Notes on each size of the model that leaves tiles half empty; none on a CPU or without 16 bits."""
    least = multiple(environment, precisions)
    return [*_notes(_of_text(model_config), least)] if least > 1 else []


def _of_text(model_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the fields of its `text_config`."""
    text = model_config.get("text_config")
    return {**model_config, **(text if isinstance(text, Mapping) else {})}


def _notes(config: Mapping[str, Any], least: int) -> Iterator[Note]:
    for name in (_VOCABULARY, *_WIDTHS):
        if (size := _whole(config, name)) % least:
            kind = NoteKind.VOCABULARY if name == _VOCABULARY else NoteKind.WIDTH
            yield Note(kind, {"size": size, "least": least, "next": -(-size // least) * least}, name)
    width = next(filter(None, (_whole(config, name) for name in _WIDTHS[:4])), 0)
    heads = next((size for name in _HEADS if (size := _whole(config, name))), 0)
    size = _whole(config, "head_dim") or (width // heads if heads else 0)
    if size % SMALLEST:
        yield Note(NoteKind.HEADS, {"size": size, "least": SMALLEST})


def _whole(config: Mapping[str, Any], name: str) -> int:
    """A size of the config; 0 if it has none."""
    size = config.get(name)
    return size if isinstance(size, int) and not isinstance(size, bool) else 0
