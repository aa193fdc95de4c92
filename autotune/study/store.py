"""Study folder: its lock, what tells the study from others, and its trials.

<folder>/request.json            what is searched, and what tells this study from others
         study.db                the same trials as an Optuna study
         probes/0007/            proposal, order, measurement and log of trial 7
         probes/0007/confirmation-1/
         probes/0007/prospect.json   what the untried could still win after it
         probes/0007/estimated_peak.json   what its memory is for, as it was estimated
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from autotune.core import Configuration, InvalidRequest, Measurement, Trial, write_json
from autotune.core.errors import StorageFailed, StudyInUse, StudyMismatch
from autotune.core.io import MISSING, Unreadable, read_record
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot, SlotKind
from autotune.memory.peak import MemoryPeak
from autotune.probe.order import ANSWER, ORDER, remove_unfinished

REQUEST, VERIFICATION, EXPLAINED = "request.json", "verification.json", "explanation.json"
"""The request of a study, and what `autotune verify` and `autotune explain` measured of its answer."""
REALIZED = "realized.json"
"""Speed of the last real training with the answer."""
PROSPECT, PEAK = "prospect.json", "estimated_peak.json"
"""Files: possible gain of the untried, next to the trial after which it held; estimated memory of that trial by parts."""
EXPLANATION = "explanation"
"""Folder of what `autotune explain` measured."""
TENSORBOARD = "tensorboard"
"""TensorBoard's folder."""
OPTUNA_STUDY = "study.db"
"""The search as an Optuna study (study/database.py)."""
FOLDERS = ("probes", "sanity_check", EXPLANATION, TENSORBOARD)
"""Folders that trainings of every kind leave in a study's folder."""

Kept = TypeVar("Kept")
DISK_ADVICE = "Free space or name another --output-dir; run the same command again to resume."


def study_folder(study: str, output_dir: str) -> Path:
    """The folder of a study that is named, or given by its folder."""
    return Path(study) if os.path.exists(Path(study) / REQUEST) else Path(output_dir) / study


ROUND = "confirmation-{}"
"""Folder of a round, in that of its trial."""


def folder_number(text: str) -> int | None:
    """Number of a trial or a round in the name of its folder; None for another name, as of a copy."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 6 else None


PROPOSAL = "proposal.json"
"""A trial's configuration and how likely it was to fit, before it is measured."""


def probe_folder(folder: Path, slot: Slot) -> Path:
    """Folder of the files of a measurement."""
    names = {
        SlotKind.TRIAL: f"{slot.number:04d}",
        SlotKind.REFERENCE: "reference",
        SlotKind.DEVICE: f"device-{slot.number}",
    }
    place = folder / "probes" / names[slot.kind]
    return place / ROUND.format(slot.round) if slot.round else place


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the study's folder for this process; raises StudyInUse, StorageFailed or InvalidRequest (it is a file)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder).acquire()
    except Timeout as error:
        raise _in_use(folder) from error
    except OSError as error:
        if file := next(
            (path for path in (folder, *folder.parents) if os.path.lexists(path) and not path.is_dir()), None
        ):
            what = "a link to nothing" if file.is_symlink() and not file.exists() else "a file"
            message = f"{file} is {what}, and a study needs a folder."
            raise InvalidRequest(message, "Name another --output-dir.") from error
        message = f"{folder} cannot be written or locked: {error.strerror}."
        raise StorageFailed(message, "Name another --output-dir, on a local disk.") from error
    with lock:
        remove_unfinished(folder)
        yield


def _lock(folder: Path) -> FileLock:
    return FileLock(folder / ".lock", blocking=False, fallback_to_soft=False)


def is_unmeasured(folder: Path) -> bool:
    """True if this folder holds a study without a measured trial: beginning it again loses nothing."""
    return (folder / REQUEST).exists() and not _is_measured(folder)


def _is_measured(folder: Path) -> bool:
    return any((folder / "probes").glob(f"[0-9]*/{ANSWER}"))


def check_unlocked(folder: Path) -> None:
    """Raise StudyInUse if another process holds the study's folder now; takes no lock of its own to keep."""
    with contextlib.suppress(OSError):  # nothing can be locked here
        try:
            if (folder / ".lock").exists():
                with _lock(folder):
                    pass
        except Timeout as error:
            raise _in_use(folder) from error


def _in_use(folder: Path) -> StudyInUse:
    return StudyInUse(
        f"Another process works on the study in {folder}.", "Wait for it, or give this one another --study-name."
    )


def check_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise StudyMismatch, showing the difference, if the study in this folder answers another question."""
    path = folder / REQUEST
    with reporting_storage(folder):
        if path.exists():
            try:
                recorded = read_record(path, lambda record: dict(record["identity"]))
            except Unreadable as error:
                raise damaged_request(path, error) from error
            if recorded != identity:
                raise StudyMismatch(
                    f"The study {folder.name} answers another question: {'; '.join(_differences(recorded, identity))}.",
                    "Give this one another --study-name, or use --fresh to begin it again.",
                )
        elif _is_measured(folder):
            raise damaged_request(path, Unreadable(MISSING))


PARTS = {
    "model_config": "the model's config",
    "architecture": "the model",
    "task": "--task",
    "data": "--dataset",
    "text_column": "--text-column",
    "label_column": "--label-column",
    "tokenizer": "--tokenizer",
    "sequence_length": "--sequence-length",
    "global_batch_size": "--global-batch-size",
    "environment": "this machine",
    "training_args": "--args",
    "argument_files": "what --args names",
    "memory_limit_bytes": "--memory-limit",
    "headroom": "--headroom",
    "objective": "--objective",
    "space": "the search space",
}
"""Part of an identity -> what people call it."""

MAKE_THE_SPACE = ("architecture", "task", "sequence_length", "global_batch_size", "environment", "training_args")
"""Parts of an identity that change the values of a search space too."""


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`--memory-limit was 600, is now 700` for each value that differs, at most five.

    The search space's own last and only if nothing else explains it.
    """
    differing = [name for name in dict.fromkeys([*PARTS, *before, *now]) if before.get(name) != now.get(name)]
    if {*MAKE_THE_SPACE} & {*differing}:
        differing = [name for name in differing if name != "space"]
    leaves = [leaf for name in differing for leaf in _leaves(before.get(name), now.get(name), PARTS.get(name, name))]
    return leaves[:5]


def _leaves(before: Any, now: Any, place: str) -> list[str]:
    """Differences below a place, a text each."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
        return [leaf for key in keys for leaf in _leaves(before.get(key), now.get(key), f"{place}: {key}")]
    return [f"{place} was {_short(before)}, is now {_short(now)}"]


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
        for path in (*folder.glob(f"{OPTUNA_STUDY}*"), *(folder / name for name in (*reports, REQUEST))):
            path.unlink(missing_ok=True)


Damage = dict[Path, str]
"""File of a study -> why it cannot be read."""


def read_trial(folder: Path, number: int, damage: Damage | None = None) -> Trial | None:
    """The trial whose order and measurement are in this folder; None if either is missing or cannot be read.

    A round that cannot be read is left out. damage: takes the files that cannot be read, and what is missing although it was
    written before others that are there.
    """
    damage = {} if damage is None else damage
    configuration = _whole(folder / ORDER, lambda data: Configuration.from_dict(data["configuration"]), damage)
    measurement = _whole(folder / ANSWER, Measurement.from_dict, damage)
    rounds = read_rounds(folder, damage)
    if configuration is not None and measurement is not None:
        return Trial(number, configuration, measurement, tuple(rounds.values()))
    if rounds and not (folder / ANSWER).exists():
        damage[folder / ANSWER] = MISSING
    if (rounds or measurement is not None) and not (folder / ORDER).exists():
        damage[folder / ORDER] = MISSING
    return None


def read_references(folder: Path, damage: Damage | None = None) -> dict[int, Measurement]:
    """Round -> measurement of the losses' reference in it, if that was not a trial's; without those that cannot be read."""
    place = probe_folder(folder, Slot(kind=SlotKind.REFERENCE))
    read = {number: read_trial(place / ROUND.format(number), 0, damage) for number in read_rounds(place, damage)}
    # A training that was killed does not say itself what it was asked for.
    return {
        number: replace(trial.measurement, round=number, asked=trial.configuration.values)
        for number, trial in read.items()
        if trial
    }


def read_rounds(folder: Path, damage: Damage | None = None) -> dict[int, Measurement]:
    """Round -> measurement, of all confirmation rounds in a trial's folder that can be read."""
    places = {path: path.parent.name.rpartition("-")[2] for path in folder.glob(f"confirmation-*/{ANSWER}")}
    numbers = {number: path for path, text in places.items() if (number := folder_number(text)) is not None}
    rounds = {number: _whole(path, Measurement.from_dict, damage) for number, path in sorted(numbers.items())}
    return {number: replace(measured, round=number) for number, measured in rounds.items() if measured is not None}


def _whole(path: Path, build: Callable[[Any], Kept], damage: Damage | None) -> Kept | None:
    """Content of a file; None if it is missing, or cannot be read, which is reported to `damage`."""
    try:
        value: Kept = read_record(path, build)
        return value
    except FileNotFoundError:
        return None
    except Unreadable as error:
        if damage is not None:
            damage[path] = str(error)
        return None


def keep_prospect(folder: Path, number: int, prospect: OptimalityGap) -> None:
    """Write what the untried could still win after this trial. Raises OSError if the disk refuses."""
    _keep(folder, number, PROSPECT, prospect.to_dict())


def read_prospects(folder: Path, damage: Damage | None = None) -> dict[int, OptimalityGap]:
    """Trial number -> what the untried could still win after it; without those that are missing or cannot be read."""
    return _read(folder, PROSPECT, OptimalityGap.from_dict, damage)


def keep_peaks(folder: Path, peaks: Mapping[int, MemoryPeak]) -> None:
    """Write the estimated peaks of trials that have none yet. Raises OSError if the disk refuses."""
    for number, peak in peaks.items():
        if not (probe_folder(folder, Slot(number)) / PEAK).exists():
            _keep(folder, number, PEAK, peak.to_dict())


def read_peaks(folder: Path, damage: Damage | None = None) -> dict[int, MemoryPeak]:
    """Trial number -> its estimated peak; without those that are missing or cannot be read."""
    return _read(folder, PEAK, MemoryPeak.from_dict, damage)


def _keep(folder: Path, number: int, name: str, data: Mapping[str, Any]) -> None:
    place = probe_folder(folder, Slot(number))
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / name, data)


def _read(
    folder: Path, name: str, build: Callable[[Mapping[str, Any]], Kept], damage: Damage | None
) -> dict[int, Kept]:
    paths = {folder_number(path.parent.name): path for path in sorted(folder.glob(f"probes/*/{name}"))}
    records = {number: _whole(path, build, damage) for number, path in paths.items() if number is not None}
    return {number: record for number, record in records.items() if record is not None}


def discard_damaged(folder: Path, damage: Damage) -> None:
    """Remove the rounds and records that cannot be read: they are measured or made again; trials' own files stay until then.

    Raises OSError if the disk refuses.
    """
    for path in damage:
        if path.parent.parent != folder / "probes" or path.name in (PROSPECT, PEAK):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


_DAMAGED_ADVICE = "Restore it from a copy, or give the search another --study-name; --fresh deletes what was measured."


def damaged_request(path: Path, error: Unreadable) -> StorageFailed:
    """The error of a study whose request.json cannot be read: whether its measurements answer a request is then unknown."""
    return StorageFailed(f"{path} is damaged: {error}.", _DAMAGED_ADVICE)


@contextlib.contextmanager
def reporting_storage(folder: Path, what: str = "", advice: str = DISK_ADVICE) -> Iterator[None]:
    """Turn what a disk can refuse into one clear line. what: is written to the folder, for people."""
    try:
        yield
    except OSError as error:
        place = f"The {what} in {folder}" if what else f"{folder}"
        raise StorageFailed(f"{place} cannot be written: {error.strerror or error}.", advice) from error
