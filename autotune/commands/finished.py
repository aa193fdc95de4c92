"""A finished study as the answer to the same request: read from its folder, without starting anything."""

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core import InvalidRequest, TuningRequest, read_json
from autotune.core.environment import installed_versions
from autotune.core.request import tuning_request
from autotune.probe.device import nvml
from autotune.space.user_arguments import read_user_arguments
from autotune.space.variables import READ
from autotune.study.store import REQUEST

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult

PLACES = ("model", "dataset", "tokenizer", "space")
"""Fields of a request that may name files."""

VARIABLES = (*READ, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE")
"""Variables that can make the same request another one."""


def finished_answer(model: str, global_batch_size: int, options: Mapping[str, Any]) -> "TuningResult | None":
    """The answer of a study that a request with these options of `search` finished; None where a search is needed.

    Raises InvalidRequest for options that can be seen to be wrong by themselves, and what `finished_study` raises.
    """
    if options.get("fresh"):
        return None
    user = read_user_arguments(args=options.get("args"), training_args=options.get("training_args"))
    arguments = {name: value for name, value in options.items() if name not in ("fresh", "args", "training_args")}
    request = tuning_request(model, global_batch_size, training_args=user.fields, **arguments)
    return finished_study(request, request_fingerprint(request))


def finished_study(request: TuningRequest, fingerprint: str) -> "TuningResult | None":
    """The result of the study that this request, with this fingerprint, finished with nothing left to do; else None.

    Raises NothingFits or SearchFailed, as the search did, where that study found no answer.
    """
    pattern = f"{escape(request.model_name)}-*-gb{request.global_batch_size}-*"
    result = None
    for path in sorted(Path(request.output_dir).glob(f"{escape(request.study_name or '') or pattern}/{REQUEST}")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, InvalidRequest):
            if read_json(path)["finished"] == fingerprint:
                from autotune.commands.result import TuningResult

                result = TuningResult.load(path.parent)
    if result is None:
        return None
    result.best  # noqa: B018  (raises where there is none)
    return replace(result, request=replace(request, training_args=result.request.training_args))


def request_fingerprint(request: TuningRequest) -> str:
    """Sixteen hexadecimal digits that change with the request, the files that it names, this machine and the libraries.

    Of files path, size and time count. A model or data set on the hub counts by its name.
    """
    data = request.to_dict()
    facts = {
        "request": {name: value for name, value in data.items() if name != "output_dir"},
        "files": {name: _stamps(data[name]) for name in PLACES if data[name]},
        "versions": installed_versions(),
        "machine": [platform.machine(), _processor(), len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES")],
        "cards": [] if request.device == "cpu" else [card.uuid for card in nvml.visible_cards()],
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _stamps(place: str) -> list[tuple[str, int, int]]:
    """(path, bytes, time of the last change) of the files that lie there; none for a name that is no path."""
    return [
        (str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns)
        for path in _files(Path(place))
        if path.is_file()
    ]


def _files(place: Path) -> Iterable[Path]:
    return sorted(place.rglob("*")) if place.is_dir() else [place]


def _processor() -> str:
    """The processor as it calls itself."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line
    return platform.processor()
