"""The models and data that a request may name: folders below roots, and hub ids; without code, pickles and links to elsewhere."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.io import read_json
from autotune.workload.data.sources import READERS, SAVED, data_ending
from autotune.workload.model.builtin import BUILT_IN

TOKENIZER_CONFIG = "tokenizer_config.json"
MOST_CONFIG_BYTES = 2**20
MOST_INDEX_BYTES = 2**25
MOST_NAMES = 500
"""Largest number of listed names below a root."""

_PART = r"\w[\w.+=@ -]*"
_ROOTED = re.compile(rf"(?P<root>[\w-]+):(?P<rest>{_PART}(?:/{_PART})*)", re.ASCII)
_HUB_ID = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?(?::\w[\w.-]*)?", re.ASCII)
OPENED = f"^({re.sub('[?]P<.*?>', '', _ROOTED.pattern)}|{_HUB_ID.pattern})$"
"""The pattern of what `Roots` may open; it says in words why a name is refused."""


@dataclass(frozen=True)
class Roots:
    """The models and data that searches may name: `team:llama-8b` is a folder below the models' root `team`.

    executor: on whose devices they run.
    hub: off, cached (no network) or online; hub_patterns: of the hub ids that may be named then, as `meta-llama/*`.
    """

    models: Mapping[str, Path] = field(default_factory=dict)
    data: Mapping[str, Path] = field(default_factory=dict)
    hub: str = "off"
    hub_patterns: Sequence[str] = ()
    executor: str = "local"

    def resolved(self, what: str, name: str) -> str:
        """The model, tokenizer or dataset that `search` opens for a name: built in, a path without links, or a hub id.

        A tokenizer is a folder of the models. Raises InvalidRequest.
        """
        if what == "model" and name in BUILT_IN:
            return name
        roots = self.data if what == "dataset" else self.models
        rooted = _ROOTED.fullmatch(name)
        root = roots.get(rooted["root"]) if rooted else None
        if rooted and root is not None:
            path = _below(root, rooted["rest"], f"There is no {what} {name!r} on this server.")
            if what == "dataset":
                _check_data_files(Path(path), name)
            else:
                _check_code(Path(path), name)
                _check_model_files(Path(path), name)
            return path
        if self.hub != "off" and _HUB_ID.fullmatch(name) and not os.path.lexists(name):
            if any(fnmatchcase(name, pattern) for pattern in self.hub_patterns):
                if what != "dataset":
                    self._check_cached(what, name)
                return name  # it is opened without its code, too
            takes = f"It takes {', '.join(self.hub_patterns) or 'none'}."
            raise InvalidRequest(f"This server takes no {what} {name!r} from the hub.", takes)
        known = [*(BUILT_IN if what == "model" else ()), *(f"{root}:" for root in roots)]
        raise InvalidRequest(f"There is no {what} {name!r} on this server.", did_you_mean(name, known))

    def _check_cached(self, what: str, name: str) -> None:
        """Raise InvalidRequest for a hub id with refused files in the cache, or without files that the cache must have.

        Weights are never downloaded: the ones that a search reads are there now.
        """
        from autotune.workload.model.weights import cached_folder

        if folder := cached_folder(name):
            _check_model_files(folder, name)
        elif self.hub == "cached":
            advice = "Download it there, or name another one."
            raise InvalidRequest(f"The cache of this server does not hold the {what} {name!r}.", advice)

    def names(self, kind: Literal["models", "data"]) -> list[str]:
        """Names below the roots that a request may use, two folders deep, at most 500 of each root."""
        roots = self.models if kind == "models" else self.data
        return [name for root, folder in roots.items() for name in islice(_listed(root, folder, kind), MOST_NAMES)]


def _below(root: Path, rest: str, missing: str) -> str:
    """The path without links; raises InvalidRequest if it or its content is outside the root, or not a file or folder."""
    base = os.path.realpath(root)
    path = os.path.realpath(os.path.join(base, rest))
    links = [path]
    if os.path.isdir(path):
        entries = ((here, name) for here, folders, files in os.walk(path) for name in (*folders, *files))
        links += [entry for entry in (os.path.join(*pair) for pair in entries) if os.path.islink(entry)]
    elif not os.path.isfile(path):
        raise InvalidRequest(missing, "List the models with GET /api/v1/models.")
    for link in links:
        target = os.path.realpath(link)
        if os.path.commonpath((base, target)) != base or (link != path and not os.path.isfile(target)):
            raise InvalidRequest(missing, "List the models with GET /api/v1/models. No link may lead out of a root.")
    return path


def _check_code(path: Path, name: str) -> None:
    """Raise InvalidRequest for a model or tokenizer that brings code."""
    for file in [path / "config.json", path / TOKENIZER_CONFIG] if path.is_dir() else [path]:
        data = _read_small(file, name) if file.is_file() else None
        if isinstance(data, dict) and data.get("auto_map"):
            raise InvalidRequest(
                f"{name!r} brings Python code of its own (auto_map in {file.name}), and this server runs none.",
                "Take auto_map out of a copy, if transformers has this model itself.",
            )


def _check_model_files(path: Path, name: str) -> None:
    """Raise InvalidRequest for the folder of a model or tokenizer that unpickles, or names files outside it.

    So it does for one that names another model: an adapter's base model may be anywhere.
    """
    if (path / "adapter_config.json").exists():
        raise InvalidRequest(f"{name!r} is an adapter (adapter_config.json).", "Name the model that it is for.")
    # Of these two, safetensors are read if both exist.
    weights = [
        path / f"{stem}{end}" for stem in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")
    ]
    read = next((file for file in weights if file.is_file()), None)
    if read is not None and (read.name.startswith("pytorch") or not _is_safe(read)):
        raise InvalidRequest(
            f"The weights of {name!r} are pickled, or outside of its folder ({read.name}).", "Save them as safetensors."
        )
    if (path / TOKENIZER_CONFIG).is_file():
        data = _read_small(path / TOKENIZER_CONFIG, name)
        for key, value in data.items() if isinstance(data, dict) else ():
            # Tokens and templates may hold a slash; the two names are not opened.
            if key in ("name_or_path", "special_tokens_map_file") or key.endswith(("_token", "_tokens", "template")):
                continue
            texts = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and not _is_plain_name(text) for text in texts):
                raise InvalidRequest(
                    f"{TOKENIZER_CONFIG} of {name!r} names a file outside of its folder ({key}).",
                    "Take it out of a copy: tokenizers find their files by their names.",
                )


def _check_data_files(path: Path, name: str) -> None:
    """Raise InvalidRequest for a folder that `save_to_disk` wrote, if its lists name files outside of it."""
    if not any((path / file).is_file() for file in SAVED):
        return
    for here, _, files in os.walk(path):
        for file in {"state.json", "dataset_dict.json"}.intersection(files):
            data = _read_small(Path(here, file), name)
            try:
                names = (
                    data["splits"]
                    if file == "dataset_dict.json"
                    else [part["filename"] for part in data["_data_files"]]
                )
                is_within = all(_is_plain_name(each) for each in names)
            except (KeyError, TypeError):
                is_within = False
            if not is_within:
                raise InvalidRequest(f"{file} of {name!r} names a file outside of its folder.", "Save the data again.")


def _is_plain_name(text: str) -> bool:
    """True if this is a name within a folder, without any way to another one."""
    return not re.search(r"[/\\\0]", text) and text not in (".", "..") and not text.startswith("~")


def _read_small(file: Path, name: str) -> Any:
    """The content of a small JSON file. Raises InvalidRequest."""
    if file.stat().st_size > MOST_CONFIG_BYTES:
        raise InvalidRequest(f"{file.name} of {name!r} is not a config: it has more than 1 MiB.")
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file.name} of {name!r} cannot be read as JSON.", "Name a model.") from error


def _is_safe(weights: Path) -> bool:
    """True if this file of weights, or all files that an index names, are safetensors in the same folder."""
    if weights.suffix == ".safetensors":
        return True
    try:
        if weights.stat().st_size > MOST_INDEX_BYTES:
            return False
        files = read_json(weights)["weight_map"].values()
        return all(_is_plain_name(file) and file.endswith(".safetensors") for file in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _listed(root: str, folder: Path, kind: str) -> Iterator[str]:
    base = os.path.realpath(folder)
    for here, folders, files in os.walk(base):
        depth = len(Path(here).relative_to(base).parts)
        whole = "config.json" in files if kind == "models" else depth == 1
        folders[:] = sorted(folders) if depth < 2 and not (whole and kind == "models") else []
        if kind == "models":
            single = [] if whole else [file for file in sorted(files) if file.endswith(".json")]
        else:
            single = [file for file in sorted(files) if data_ending(Path(file)) in READERS]
        for path in ([here] if whole else []) + [os.path.join(here, file) for file in single]:
            name = f"{root}:{os.path.relpath(path, base)}"
            if _ROOTED.fullmatch(name) and os.path.realpath(path) == path:
                yield name
