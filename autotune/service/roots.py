"""The models and data that searches may name: below named roots, built in, or on the hub."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Literal

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.io import read_json
from autotune.workload.data.sources import READERS
from autotune.workload.model.builtin import BUILT_IN

MOST_CONFIG_BYTES = 2**20
MOST_NAMES = 500
"""Names below a root that are listed."""

_PART = r"\w[\w.+=@ -]*"
_ROOTED = re.compile(rf"(?P<root>[\w-]+):(?P<rest>{_PART}(?:/{_PART})*)", re.ASCII)
_HUB_ID = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?(?::\w[\w.-]*)?", re.ASCII)
_PICKLED = {"pytorch_model.bin": "model.safetensors", "adapter_model.bin": "adapter_model.safetensors"}
"""File of weights that is read by unpickling -> the file that is read in its place where it is there."""


@dataclass(frozen=True)
class Roots:
    """The models and data that searches may name: `team:llama-8b` is a folder below the models' root `team`.

    hub: off, cached (no network) or online; hub_patterns: of the ids that may be named then, as `meta-llama/*`.
    """

    models: Mapping[str, Path] = field(default_factory=dict)
    data: Mapping[str, Path] = field(default_factory=dict)
    hub: str = "off"
    hub_patterns: tuple[str, ...] = ()

    def model(self, name: str) -> str:
        """What `search` opens for this model: built in, a path without links, or a hub id. Raises InvalidRequest."""
        if name in BUILT_IN:
            return name
        path = self._resolved(self.models, "model", name)
        _check_model_files(path, name)
        return path

    def tokenizer(self, name: str) -> str:
        """The same for a tokenizer, which is a folder of the models."""
        path = self._resolved(self.models, "tokenizer", name)
        _check_model_files(path, name)
        return path

    def dataset(self, name: str) -> str:
        """The same for data."""
        return self._resolved(self.data, "dataset", name)

    def _resolved(self, roots: Mapping[str, Path], what: str, name: str) -> str:
        rooted = _ROOTED.fullmatch(name)
        if rooted and rooted["root"] in roots:
            return _below(roots[rooted["root"]], rooted["rest"], f"There is no {what} {name!r} on this server.")
        if self.hub != "off" and _HUB_ID.fullmatch(name) and not os.path.lexists(name):
            if any(fnmatchcase(name, pattern) for pattern in self.hub_patterns):
                return name
            raise InvalidRequest(
                f"This server takes no {what} {name!r} from the hub.", f"It takes {self.hub_patterns}."
            )
        known = [*(BUILT_IN if what == "model" else ()), *(f"{root}:" for root in roots)]
        raise InvalidRequest(f"There is no {what} {name!r} on this server.", did_you_mean(name, known))

    def names(self, kind: Literal["models", "data"]) -> list[str]:
        """What is below the roots and can be named, two folders deep, at most 500 of each root."""
        roots = self.models if kind == "models" else self.data
        return [name for root, folder in roots.items() for name in islice(_listed(root, folder, kind), MOST_NAMES)]


def _below(root: Path, rest: str, missing: str) -> str:
    """The path without links; raises InvalidRequest where it, or what is in it, is outside of the root, or no file or folder."""
    base = os.path.realpath(root)
    path = os.path.realpath(os.path.join(base, rest))
    links = [path]
    if os.path.isdir(path):
        entries = ((here, name) for here, folders, files in os.walk(path) for name in (*folders, *files))
        links += [entry for entry in (os.path.join(*pair) for pair in entries) if os.path.islink(entry)]
    elif not os.path.isfile(path):
        raise InvalidRequest(missing, "GET /api/v1/models lists what there is.")
    for link in links:
        target = os.path.realpath(link)
        if os.path.commonpath((base, target)) != base or (link != path and not os.path.isfile(target)):
            raise InvalidRequest(missing, "GET /api/v1/models lists what there is. No link may lead out of a root.")
    return path


def _check_model_files(path: str, name: str) -> None:
    """Raise InvalidRequest for a model or tokenizer with code of its own, or with weights that are read by unpickling."""
    if not os.path.isabs(path):
        return  # a hub id: it is opened without its code, too
    place = Path(path)
    for file in filter(Path.is_file, (place, place / "config.json", place / "tokenizer_config.json")):
        if file.stat().st_size > MOST_CONFIG_BYTES:
            raise InvalidRequest(f"{file.name} of {name!r} is no config: it has more than 1 MiB.")
        try:
            data = read_json(file)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{file.name} of {name!r} cannot be read as JSON.", "Name a model.") from error
        if isinstance(data, dict) and data.get("auto_map"):
            raise InvalidRequest(
                f"{name!r} brings Python code of its own (auto_map in {file.name}), and this server runs none.",
                "Take auto_map out of a copy, if transformers has this model itself.",
            )
    for pickled, safe in _PICKLED.items():
        has = [any((place / f"{stem}{end}").is_file() for end in ("", ".index.json")) for stem in (pickled, safe)]
        if has == [True, False]:
            raise InvalidRequest(f"The weights of {name!r} are pickled ({pickled}).", "Save them as safetensors.")


def _listed(root: str, folder: Path, kind: str) -> Iterator[str]:
    base = os.path.realpath(folder)
    for here, folders, files in os.walk(base):
        depth = len(Path(here).relative_to(base).parts)
        whole = "config.json" in files if kind == "models" else depth == 1
        folders[:] = sorted(folders) if depth < 2 and not (whole and kind == "models") else []
        endings = {".json"} if kind == "models" else READERS
        single = [] if whole and kind == "models" else [file for file in sorted(files) if Path(file).suffix in endings]
        for path in ([here] if whole else []) + [os.path.join(here, file) for file in single]:
            name = f"{root}:{os.path.relpath(path, base)}"
            if _ROOTED.fullmatch(name) and os.path.realpath(path) == path:
                yield name
