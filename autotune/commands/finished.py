"""A finished study as the answer to the same request: read from its folder, without starting anything."""

import contextlib
import hashlib
import json
import os
import platform
import warnings
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core import InvalidRequest, TuningRequest, read_json
from autotune.core.environment import installed_versions
from autotune.core.errors import UnreadableFile
from autotune.probe.device import nvml
from autotune.probe.device.machine import cpu_name
from autotune.space.user_arguments import files_of
from autotune.space.variables import READ
from autotune.study.store import REQUEST
from autotune.workload.data.sources import stamp

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult

PLACES = ("model", "dataset", "tokenizer", "space")
"""Fields of a request that may name files."""

VARIABLES = (*READ, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE")
"""Variables that can make the same request another one."""


def finished_study(request: TuningRequest, fingerprint: str) -> "TuningResult | None":
    """The result of the study that this request, with this fingerprint, finished with nothing left to do; else None.

    Raises NothingFits or SearchFailed, as the search did, if that study found no answer.
    """
    pattern = f"{escape(request.model_name)}-*-gb{request.global_batch_size}-*"
    result = None
    for path in sorted(Path(request.output_dir).glob(f"{escape(request.study_name or '') or pattern}/{REQUEST}")):
        with (
            contextlib.suppress(OSError, ValueError, KeyError, TypeError, InvalidRequest),
            warnings.catch_warnings(action="ignore", category=UnreadableFile),
        ):
            if read_json(path)["finished"] == fingerprint:
                from autotune.commands.result import TuningResult

                result = TuningResult.load(path.parent)
    if result is None or result.unreadable:
        return None
    result.best  # noqa: B018  (raises if there is none)
    return replace(result, request=replace(request, training_args=result.request.training_args))


def request_fingerprint(request: TuningRequest) -> str:
    """Sixteen hexadecimal digits that change with the request, the files that it names, this machine and the libraries.

    Files count as `stamp` has them. A model or data set on the hub counts by its name.
    """
    data = request.to_dict()
    facts = {
        "request": {name: value for name, value in data.items() if name != "output_dir"},
        "files": {name: _version(data[name]) for name in PLACES if data[name]}
        | {name: stamp([path]) for name, path in files_of(request.training_args).items()},
        "versions": installed_versions(),
        "machine": [platform.machine(), cpu_name(), len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES")],
        "cards": [] if request.device == "cpu" else [card.uuid for card in nvml.visible_cards()],
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _version(place: str) -> str:
    """Stamp of the file, or of those in the folder; empty for a name that is not a path."""
    files = [path for path in (Path(place), *Path(place).rglob("*")) if path.is_file()]
    return stamp(files) if files else ""
