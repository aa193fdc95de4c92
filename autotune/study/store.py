"""Study folder: its lock, what tells the study from others, and its trials.

<folder>/request.json            what is searched, and what tells this study from others
         study.db                Optuna's own record, for its samplers
         probes/0007/            order, measurement and log of trial 7
         probes/0007/confirmation-1/
         probes/0007/prospect.json   what the untried could still win after it
         probes/0007/estimated_peak.json   what its memory is for, as it was estimated
"""

import contextlib
import fcntl
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from autotune.core import Configuration, InvalidRequest, Measurement, Trial, read_json, write_json
from autotune.core.configuration import renamed
from autotune.core.errors import StorageFailed, StudyInUse, StudyMismatch
from autotune.core.prospect import OptimalityGap
from autotune.memory.peak import MemoryPeak
from autotune.probe.order import ANSWER, ORDER, remove_unfinished

REQUEST, VERIFICATION, EXPLAINED = "request.json", "verification.json", "explanation.json"
"""The request of a study, and what `autotune verify` and `autotune explain` measured of its answer."""
PROSPECT, PEAK = "prospect.json", "estimated_peak.json"
"""What the untried could still win, next to the trial after which it held; what that trial's memory is for."""
EXPLANATION = "explanation"
"""Folder of what `autotune explain` measured."""
TENSORBOARD, RUNS = "tensorboard", "loggers.json"
"""What TensorBoard is told, and which runs of which loggers are this study's."""
FOLDERS = ("probes", "numerics", "rehearsal", EXPLANATION, TENSORBOARD)
"""What trainings of every kind leave in a study's folder."""

Kept = TypeVar("Kept")
_DISK_ADVICE = "Free space or name another --output-dir; run the same command again to resume."


def study_folder(study: str, output_dir: str) -> Path:
    """The folder of a study that is named, or given by its folder."""
    return Path(study) if (Path(study) / REQUEST).exists() else Path(output_dir) / study


REFERENCE = -1
"""In place of a trial's number: fp32's trainings in rounds whose baseline is not fp32."""

DEVICES = -2
"""In place of a trial's number, less the place of a device among several: the baseline's training on it, before any other."""

OPEN_ROUND = "open-round-{}.json"
"""Where a round is noted while it runs on one of several devices: what is left of it is of no use."""


def probe_folder(folder: Path, number: int, confirmation: int = 0) -> Path:
    """Where the files of a trial's probe, or of a confirmation round of it, go."""
    name = f"{number:04d}" if number >= 0 else "reference" if number == REFERENCE else f"device-{DEVICES - number}"
    place = folder / "probes" / name
    return place / f"confirmation-{confirmation}" if confirmation else place


def open_round(folder: Path, round_number: int) -> None:
    """Note that this round runs. Raises OSError where the disk refuses."""
    (folder / "probes").mkdir(parents=True, exist_ok=True)
    write_json(folder / "probes" / OPEN_ROUND.format(round_number), {"round": round_number})


def close_round(folder: Path, round_number: int) -> None:
    """Note that this round is complete."""
    (folder / "probes" / OPEN_ROUND.format(round_number)).unlink(missing_ok=True)


def drop_round(folder: Path, round_number: int) -> None:
    """Remove what was measured in this round. Raises OSError where the disk refuses."""
    for path in folder.glob(f"probes/*/confirmation-{round_number}/{ANSWER}"):
        path.unlink(missing_ok=True)


def drop_open_rounds(folder: Path) -> None:
    """Remove what a killed search left of rounds that ran on one of several devices. Raises OSError where the disk refuses."""
    for path in sorted((folder / "probes").glob(OPEN_ROUND.format("*"))):
        number = int(path.stem.rpartition("-")[2])
        drop_round(folder, number)
        close_round(folder, number)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the study's folder for this process; raises StudyInUse, StorageFailed or InvalidRequest (it is a file)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidRequest(
            f"{folder} is a file, and a study needs a folder.", "Name another --output-dir."
        ) from error
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written: {error.strerror}.", "Name another --output-dir.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(folder) from error
        except OSError as error:  # a file system without locks
            message = f"{folder} cannot be locked: {error.strerror}."
            raise StorageFailed(message, "Name another --output-dir, on a local disk.") from error
        remove_unfinished(folder)
        yield


def is_unmeasured(folder: Path) -> bool:
    """Whether this folder holds a study without a measured trial: beginning it again loses nothing."""
    return (folder / REQUEST).exists() and not any((folder / "probes").glob(f"[0-9]*/{ANSWER}"))


def check_unlocked(folder: Path) -> None:
    """Raise StudyInUse where another process holds the study's folder now; takes no lock of its own to keep."""
    with contextlib.suppress(OSError), (folder / ".lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(folder) from error


def _in_use(folder: Path) -> StudyInUse:
    return StudyInUse(
        f"Another process works on the study in {folder}.", "Wait for it, or give this one another --study-name."
    )


def check_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise StudyMismatch, showing the difference, where the study in this folder answers another question."""
    path = folder / REQUEST
    with reporting_storage(folder):
        if path.exists():
            try:
                recorded = renamed(read_json(path)["identity"])
            except (ValueError, KeyError, TypeError) as error:
                raise StorageFailed(f"{path} is damaged: {error}.", "Use --fresh to begin the study again.") from error
            if recorded != identity:
                raise StudyMismatch(
                    f"The study {folder.name} answers another question: {'; '.join(_differences(recorded, identity))}.",
                    "Give this one another --study-name, or use --fresh to begin it again.",
                )


def _differences(before: Any, now: Any, place: str = "") -> list[str]:
    """`memory_limit_bytes was 600, is 700` for each leaf that differs, at most five."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        differences = [
            difference
            for key in dict.fromkeys([*before, *now])
            for difference in _differences(before.get(key), now.get(key), f"{place}.{key}".lstrip("."))
        ]
        return differences[:5]
    return [] if before == now else [f"{place} was {_short(before)}, is now {_short(now)}"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def remove_study(folder: Path, reports: Sequence[str]) -> None:
    """Remove a study's own files and these reports from its folder, and nothing else."""
    with reporting_storage(folder):
        for name in FOLDERS:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
        # What says which question it answers goes last: killed in between, the rest is still known for what it is.
        for name in ("study.db", "study.db-journal", RUNS, *reports, REQUEST):
            (folder / name).unlink(missing_ok=True)


def read_trial(folder: Path, number: int) -> Trial | None:
    """The trial whose order and measurement are in this folder; None where they are missing or incomplete."""
    try:
        order, measurement = read_json(folder / ORDER), read_json(folder / ANSWER)
        configuration = Configuration.from_dict(order["configuration"])
        return Trial(number, configuration, Measurement.from_dict(measurement), tuple(_read_rounds(folder).values()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_references(folder: Path) -> dict[int, Measurement]:
    """Round -> what fp32 did in it, where it was trained for itself; empty where a file is not whole."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return _read_rounds(probe_folder(folder, REFERENCE))
    return {}


def _read_rounds(folder: Path) -> dict[int, Measurement]:
    """Round -> measurement, of all confirmation rounds in a trial's folder."""
    paths = {int(path.parent.name.rpartition("-")[2]): path for path in folder.glob(f"confirmation-*/{ANSWER}")}
    return {
        number: replace(Measurement.from_dict(read_json(path)), round=number) for number, path in sorted(paths.items())
    }


def keep_prospect(folder: Path, number: int, prospect: OptimalityGap) -> None:
    """Write what the untried could still win after this trial. Raises OSError where the disk refuses."""
    _keep(folder, number, PROSPECT, prospect.to_dict())


def read_prospects(folder: Path) -> dict[int, OptimalityGap]:
    """Trial number -> what the untried could still win after it; without those that are missing or not whole."""
    return _read(folder, PROSPECT, OptimalityGap.from_dict)


def keep_peaks(folder: Path, peaks: Mapping[int, MemoryPeak]) -> None:
    """Write the estimated peaks of trials that have none yet. Raises OSError where the disk refuses."""
    for number, peak in peaks.items():
        if not (probe_folder(folder, number) / PEAK).exists():
            _keep(folder, number, PEAK, peak.to_dict())


def read_peaks(folder: Path) -> dict[int, MemoryPeak]:
    """Trial number -> its estimated peak; without those that are missing or not whole."""
    return _read(folder, PEAK, MemoryPeak.from_dict)


def _keep(folder: Path, number: int, name: str, data: Mapping[str, Any]) -> None:
    place = probe_folder(folder, number)
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / name, data)


def _read(folder: Path, name: str, from_dict: Callable[[Mapping[str, Any]], Kept]) -> dict[int, Kept]:
    records: dict[int, Kept] = {}
    for path in sorted(folder.glob(f"probes/*/{name}")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            records[int(path.parent.name)] = from_dict(read_json(path))
    return records


_DAMAGED_ADVICE = "Restore it from a copy, or search again with --fresh."


@contextlib.contextmanager
def reporting_storage(folder: Path) -> Iterator[None]:
    """Turn what a disk can refuse into one clear line."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written: {error.strerror or error}.", _DISK_ADVICE) from error
    except (sqlalchemy.exc.DBAPIError, optuna.exceptions.StorageInternalError) as error:
        cause = getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error
        if type(cause) is sqlite3.DatabaseError:  # its subclasses say what could not be done, not what is damaged
            raise StorageFailed(f"{folder / 'study.db'} is damaged: {cause}.", _DAMAGED_ADVICE) from error
        raise StorageFailed(f"The study in {folder} cannot be written: {cause}.", _DISK_ADVICE) from error
