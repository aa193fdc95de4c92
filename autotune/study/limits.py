"""Limits of a request: a writable folder, memory, and whether the model alone fits into it."""

import contextlib
import os
from pathlib import Path

from autotune.core import Environment, InvalidRequest, TuningRequest, Workload, read_json
from autotune.core.configuration import RANKS
from autotune.core.errors import NothingFits, StorageFailed
from autotune.core.io import Unreadable, read_record
from autotune.core.paths import hidden
from autotune.core.request import TASKS, check_installed
from autotune.core.units import format_bytes, format_parameters
from autotune.probe.device import nvml
from autotune.probe.queries import device_name
from autotune.space.build import check_overrides
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS
from autotune.study.store import REQUEST, check_unlocked, damaged_request
from autotune.workload.data.sources import check_data
from autotune.workload.model.files import check_model


def check_output(request: TuningRequest) -> None:
    """Raise now what would otherwise be raised after model and data were read."""
    root = Path(request.output_dir)
    nearest = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InvalidRequest(f"{nearest} is a file, and reports need a folder.", "Name another --output-dir.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StorageFailed(f"{nearest} cannot be written.", "Name another --output-dir.")


def check_request(request: TuningRequest, own_data: bool = False) -> nvml.Card | None:
    """Check a request before anything is started or anything heavy is loaded; returns its card.

    own_data: model and data are the caller's objects. Raises InvalidRequest, StudyInUse, StorageFailed.
    """
    check_installed(request.report_to)
    check_overrides(request)
    card = nvml.choose_device(request.device) if request.executor == "local" else None
    if own_data:
        check_output(request)
    else:
        check_files(request)
    check_free(request, device_name(request, card))
    return card


def check_files(request: TuningRequest) -> None:
    """Check local files before anything heavy is loaded. Raises InvalidRequest, StorageFailed."""
    check_output(request)
    check_model(request.model)
    if request.dataset is not None:
        check_data(request.dataset)


def check_free(request: TuningRequest, name: str) -> None:
    """Raise StudyInUse if another process works on this study, as far as its name is known already.

    name: of the device, as the environment will call it.
    """
    for folder in {request.study_folder(task, name) for task in ((request.task,) if request.task else TASKS)}:
        if request.study_name or _asks_the_same(request, folder):
            check_unlocked(folder)


def _asks_the_same(request: TuningRequest, folder: Path) -> bool:
    """True if the study in this folder has a request that leads here again, the task left to the model."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        recorded = read_json(folder / REQUEST)["request"]
        return bool(recorded["model"] == hidden(request.model) and recorded["task"] == request.task)
    return False


def memory_limit(request: TuningRequest, environment: Environment, folder: Path | None) -> int:
    """Bytes: as asked, as the study was begun with, or what is free now (on a CPU 80 % of it)."""
    if request.memory_limit_bytes is not None:
        if request.memory_limit_bytes > environment.total_memory_bytes:
            raise InvalidRequest(
                f"The memory limit of {format_bytes(request.memory_limit_bytes)} is above the "
                f"{format_bytes(environment.total_memory_bytes)} of {environment.device_name}.",
                "Give at most the device's own memory.",
            )
        return request.memory_limit_bytes
    if folder is not None and (folder / REQUEST).is_file():
        try:
            limit: int = read_record(folder / REQUEST, lambda record: int(record["memory_limit_bytes"]))
            return limit
        except Unreadable as error:
            raise damaged_request(folder / REQUEST, error) from error
    return int(environment.free_memory_bytes * (0.8 if environment.is_cpu else 1.0))


def least_bytes(space: SearchSpace, environment: Environment) -> int:
    """Bytes of each weight that the leanest value of the space has."""
    settings = [SETTINGS[name].apply(value, environment) for name, values in space.values.items() for value in values]
    return 2 if any(setting.model_arguments.get("dtype", "float32") != "float32" for setting in settings) else 4


def most_shards(space: SearchSpace) -> int:
    """The most ranks among which a configuration of the space divides weights and gradients."""
    is_sharded = {"full_shard"} & {*space.values.get("fsdp", ())} or {"3"} & {*space.values.get("zero", ())}
    return max(map(int, space.values.get(RANKS, (1,)))) if is_sharded else 1


def check_model_fits(workload: Workload, allowed: int, limit: int, weight_bytes: int = 4, shards: int = 1) -> None:
    """Weights, and gradients of those that learn, are there in every configuration. Raises NothingFits.

    weight_bytes: of each, 2 if a configuration may hold them in 16 bits. shards: ranks that they are divided between at most.
    """
    needed = (workload.parameter_bytes + workload.gradient_bytes) * weight_bytes // 4 // shards
    if needed > allowed:
        divided = f" on each of {shards} ranks" if shards > 1 else ""
        raise NothingFits(
            f"{workload.name} needs {format_bytes(needed)} for its weights and gradients alone{divided} "
            f"({format_parameters(workload.parameters)} parameters); "
            f"a limit of {format_bytes(limit)} allows {format_bytes(allowed)}.",
            "Raise --memory-limit or choose a smaller model; an adapter (--search-space=lora) needs less.",
        )
