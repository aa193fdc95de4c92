"""Config files of a request's model, and what is wrong with local ones; imports nothing heavy."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.core import InvalidRequest, read_json
from autotune.core.paths import reads_as_path
from autotune.workload.model.builtin import BUILT_IN

SIZES = frozenset(
    {
        *("vocab_size", "hidden_size", "embedding_size", "intermediate_size", "head_dim", "max_position_embeddings"),
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_channels", "image_size"),
        *("patch_size", "n_embd", "n_layer", "n_head", "n_positions", "n_layers", "n_heads", "dim", "hidden_dim"),
        *("d_model", "d_ff", "d_kv", "d_inner", "num_layers", "num_heads", "num_decoder_layers", "encoder_layers"),
        *("decoder_layers", "encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim"),
        *("ffn_dim",),
    }
)
"""Fields of configs that no model can have at zero: how transformers' most used models call their sizes."""

MOST_LAYERS = 10_000
"""More of them take minutes to build, let alone to train; refused as a typing error."""

PARTS = ("text_config", "vision_config", "encoder", "decoder")
"""Configs within a config."""


def config_file(name: str) -> Path | None:
    """The file of a local model's config; None for what can only be a hub id. Raises InvalidRequest."""
    try:
        path = Path(name).expanduser()
        is_folder, is_file = path.is_dir(), path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, no permission, no such home
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"The model {name[:80]!r} cannot be read: {why}.", "Check the path.") from error
    if is_folder:
        if not (path / "config.json").is_file():
            raise InvalidRequest(f"The folder {name} has no config.json.", "Name the folder of a saved model.")
        return path / "config.json"
    if is_file:
        return path
    if reads_as_path(name) or name.endswith(".json"):
        raise InvalidRequest(
            f"There is no such file or folder: {name}.", "Name a model's folder, a config JSON, a built-in or a hub id."
        )
    return None


def check_model(name: str) -> None:
    """Raise InvalidRequest for a local model whose config cannot be one, without asking transformers or the hub."""
    if name not in BUILT_IN and (file := config_file(name)):
        check_config(name, read_config_file(file))


def read_config_file(file: Path) -> Any:
    """The content of a config's file; raises InvalidRequest where it is no JSON."""
    try:
        return read_json(file)
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}.", "Check its permissions.") from error
    except ValueError as error:
        raise InvalidRequest(f"{file} is not valid JSON: {error}.", "Name a model's folder or its config.") from error


def check_config(name: str, raw: Any) -> None:
    """Raise InvalidRequest where this JSON is no config, or has a size that no model can have."""
    if not isinstance(raw, dict):
        raise InvalidRequest(f"The config of {name!r} is not a JSON object.", "A config is {...} with a model_type.")
    if not isinstance(raw.get("auto_map") or {}, dict):
        raise InvalidRequest(f"The auto_map of the config of {name!r} is not a JSON object.", "Take it out or fix it.")
    model_type = raw.get("model_type")
    if not model_type and "AutoConfig" not in (raw.get("auto_map") or {}):
        raise InvalidRequest(f"The config of {name!r} has no model_type.", 'Add one, such as "model_type": "llama".')
    if model_type is not None and not isinstance(model_type, str):
        raise InvalidRequest(
            f"The config of {name!r} has the model_type {model_type!r}.", "Write a word, such as llama."
        )
    pad, tokens = raw.get("pad_token_id"), raw.get("vocab_size")
    if isinstance(pad, int) and isinstance(tokens, int) and pad >= tokens > 0:
        raise InvalidRequest(
            f"The config of {name!r} has {tokens} tokens, and pad_token_id: {pad}.", "Fix one of them."
        )
    heads, shared = raw.get("num_attention_heads"), raw.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared:
        raise InvalidRequest(
            f"The config of {name!r} says num_attention_heads: {heads}, which num_key_value_heads: {shared} does not divide.",
            "Fix one of them.",
        )
    for field, value in _sizes(raw):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not isinstance(value, (list, dict)) and not (whole and value > 0):
            raise InvalidRequest(f"The config of {name!r} says {field}: {value!r}.", "Write a whole number from 1.")
        if whole and "layer" in field and value > MOST_LAYERS:
            raise InvalidRequest(f"The config of {name!r} says {field}: {value}.", "Check for a digit too many.")


def _sizes(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((field, value) for field, value in raw.items() if field in SIZES)
    for part in PARTS:
        if isinstance(inner := raw.get(part), dict):
            yield from ((f"{part}.{field}", value) for field, value in _sizes(inner))
