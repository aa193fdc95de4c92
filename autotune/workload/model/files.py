"""Files of a request's model, config and weights, and what is wrong with local ones; imports nothing heavy."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

from autotune.core import InvalidRequest, read_json
from autotune.core.io import Unreadable, read_record
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
"""Number of layers above which they take minutes to build, let alone to train; refused as a typing error."""

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
            raise _not_a_model(name, path)
        return path / "config.json"
    if is_file and path.suffix == ".gguf":
        raise _gguf(name)
    if is_file:
        return path
    if reads_as_path(name) or name.endswith(".json"):
        raise InvalidRequest(
            f"There is no such file or folder: {name}.", "Name a model's folder, a config JSON, a built-in or a hub id."
        )
    return None


def _not_a_model(name: str, folder: Path) -> InvalidRequest:
    """The error for a folder without a config, with what it holds instead."""
    if (folder / "adapter_config.json").is_file():
        base = ""
        with contextlib.suppress(Unreadable, FileNotFoundError):
            base = read_record(folder / "adapter_config.json", lambda data: str(data["base_model_name_or_path"]))
        return InvalidRequest(
            f"The folder {name} holds an adapter{f' of {base}' if base else ''}, not a model.",
            f"Name {base or 'its model'}, with --search-space lora to train an adapter on it.",
        )
    if any(folder.glob("*.gguf")):
        return _gguf(name)
    return InvalidRequest(f"The folder {name} has no config.json.", "Name the folder of a saved model.")


def _gguf(name: str) -> InvalidRequest:
    message = f"{name} is of GGUF, a format for running a model, which cannot be trained."
    return InvalidRequest(message, "Name the model that it was made from.")


def check_model(name: str) -> None:
    """Raise InvalidRequest for a local model whose config or weights cannot be read, without asking transformers or the hub."""
    if name not in BUILT_IN and (file := config_file(name)):
        check_config(name, read_config_file(file))
        if file.name == "config.json" and Path(name).expanduser().is_dir():
            check_weights(file.parent)


# Weights ---------------------------------------------------------------------------------------------------------------


WHOLE = ("model.safetensors", "pytorch_model.bin")
"""A file of all weights; `INDEX` of it names several instead. In the order in which transformers looks for them."""

INDEX = ".index.json"

LFS = b"version https://git-lfs"
"""First bytes of a pointer of git-lfs, which replaces a file that was not downloaded."""


def check_weights(folder: Path) -> None:
    """Raise InvalidRequest for weights that exist and cannot be loaded: only their headers are read.

    A folder without weights raises nothing: the model is then trained with random ones.
    """
    for file in weight_files(folder):
        _check_file(file)


def weight_files(folder: Path) -> list[Path]:
    """The file of all weights in a folder, or the files that its index names; empty without either. Raises InvalidRequest."""
    for name in WHOLE:
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}{INDEX}").is_file():
            try:
                shards = read_record(index, lambda data: sorted(map(str, set(data["weight_map"].values()))))
            except Unreadable as error:
                raise _unusable(index, str(error)) from error
            return [folder / shard for shard in shards]
    return []


def _check_file(file: Path) -> None:
    """Raise InvalidRequest if the header of a file of weights cannot be read."""
    try:
        with file.open("rb") as opened:
            head = opened.read(len(LFS))
        if head == LFS:
            raise _unusable(file, "it is a pointer of git-lfs, which stands in for the file", "Run git lfs pull.")
        if file.suffix == ".safetensors":
            with safe_open(file, framework="np"):
                pass
        elif not head or (head.startswith(b"PK") and not is_zipfile(file)):
            raise _unusable(file, "it is cut off")
    except SafetensorError as error:
        raise _unusable(file, str(error)) from error
    except FileNotFoundError:
        raise _unusable(file, "it is missing, and its index names it") from None
    except OSError as error:
        raise _unusable(file, error.strerror or "the disk refuses", "Check its permissions.") from error


def _unusable(file: Path, why: str, advice: str = "Download it again.") -> InvalidRequest:
    return InvalidRequest(
        f"The weights {file} cannot be loaded: {why}.",
        f"{advice} Or name {file.parent / 'config.json'} to search with random weights.",
    )


# Configs ---------------------------------------------------------------------------------------------------------------


def read_config_file(file: Path) -> Any:
    """The content of a config's file; raises InvalidRequest if it is not JSON."""
    try:
        return read_json(file)
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}.", "Check its permissions.") from error
    except ValueError as error:
        raise InvalidRequest(f"{file} is not valid JSON: {error}.", "Name a model's folder or its config.") from error


def check_config(name: str, raw: Any) -> None:
    """Raise InvalidRequest if this JSON is not a config, or has a size that no model can have."""
    if not isinstance(raw, dict):
        raise InvalidRequest(f"The config of {name!r} is not a JSON object.", "Write {...} with a model_type.")
    if not isinstance(raw.get("auto_map") or {}, dict):
        raise InvalidRequest(f"The auto_map of the config of {name!r} is not a JSON object.", "Take it out or fix it.")
    model_type = raw.get("model_type")
    if not model_type and "AutoConfig" not in (raw.get("auto_map") or {}):
        raise InvalidRequest(f"The config of {name!r} has no model_type.", 'Add one, such as "model_type": "llama".')
    if model_type is not None and not isinstance(model_type, str):
        raise InvalidRequest(
            f"The config of {name!r} has the model_type {model_type!r}.", "Write a word, such as llama."
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
