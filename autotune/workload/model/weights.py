"""A model's weights that are already on this machine; the network is never used."""

import contextlib
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from autotune.core.errors import InvalidRequest
from autotune.workload.model.builtin import BUILT_IN
from autotune.workload.model.files import weight_files


def local_weights(model: str) -> str:
    """Place of the weights of this model: its folder, or its hub id if the hub's local cache has them all.

    Empty for built-in shapes, config files, and models with a config alone.
    """
    if model in BUILT_IN:
        return ""
    path = Path(model).expanduser()
    if path.exists():
        return str(path.resolve()) if path.is_dir() and _holds_weights(path) else ""
    folder = cached_folder(model)
    return model if folder and _holds_weights(folder) else ""


def weights_folder(weights: str) -> str:
    """The folder of a result of `local_weights`: opened from a folder, nothing is looked up on the hub."""
    return str(cached_folder(weights) or weights)


def cached_folder(model: str) -> Path | None:
    """The folder in the hub's local cache that holds this model's config, or None."""
    try:
        config = try_to_load_from_cache(model, "config.json")
    except (HFValidationError, OSError):
        return None
    return Path(config).parent if isinstance(config, str) else None


def _holds_weights(folder: Path) -> bool:
    """True if all weights are there: the one file of them, or every shard that an index names."""
    with contextlib.suppress(InvalidRequest):
        files = weight_files(folder)
        return bool(files) and all(file.is_file() for file in files)
    return False
