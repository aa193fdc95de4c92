"""History: calibrations and trials of past studies, in the cache folder by fingerprint.

<cache>/history/<fingerprint of device and software>/<identity of the study>.json
                                                     real/<identity of the study>.json
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Environment, Measurement, Trial, read_json, write_json
from autotune.core.note import Note, NoteKind
from autotune.core.paths import cache_folder
from autotune.core.real_run import RealRun
from autotune.sampler.calibration import Calibration

REAL, MOST_RUNS = "real", 20
"""Folder of real trainings, and how many of a study are kept."""


@dataclass(frozen=True)
class Remembered:
    """trials: of an earlier study of the very same request; empty if there was none.

    others: what studies of other models or data on this device taught. real_runs: whole trainings with answers of searches on
    this device.
    """

    trials: tuple[Trial, ...] = ()
    others: tuple[Calibration, ...] = ()
    real_runs: tuple[RealRun, ...] = ()

    @property
    def notes(self) -> list[Note]:
        """A note on how real trainings kept earlier promises; none without any."""
        if not self.real_runs:
            return []
        shares = sorted(run.measured / run.promised for run in self.real_runs)
        return [Note(NoteKind.PROMISES_KEPT, {"runs": len(shares), "least": shares[0], "most": shares[-1]})]


def recall(environment: Environment, identity: Mapping[str, Any]) -> Remembered:
    """Results of past studies on this device; unreadable files are ignored."""
    own = _place(environment, identity)
    others: list[Calibration] = []
    trials: tuple[Trial, ...] = ()
    for path in sorted(own.parent.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            data = read_json(path)
            if path == own:
                trials = tuple(map(_trial, data["trials"]))
            else:
                others.append(Calibration.from_dict(data["calibration"]))
    runs: list[RealRun] = []
    for path in sorted(own.parent.glob(f"{REAL}/*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            runs += map(RealRun.from_dict, read_json(path))
    return Remembered(trials, tuple(others), tuple(runs))


def remember(
    environment: Environment, identity: Mapping[str, Any], trials: Sequence[Trial], calibration: Calibration
) -> None:
    """Keep a finished study for later ones; a disk error is ignored."""
    place = _place(environment, identity)
    data = {"calibration": calibration.to_dict(), "trials": [_to_dict(trial) for trial in trials]}
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, data)


def remember_run(environment: Environment, identity: Mapping[str, Any], run: RealRun) -> None:
    """Keep a real training, apart from what was probed, with those before it; a disk error is ignored."""
    place = _place(environment, identity)
    place = place.with_name(REAL) / place.name
    with contextlib.suppress(OSError):
        before = []
        with contextlib.suppress(FileNotFoundError, ValueError):
            before = read_json(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, [*before, run.to_dict()][-MOST_RUNS:])


def _place(environment: Environment, identity: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return cache_folder() / "history" / environment.fingerprint() / f"{digest}.json"


def _to_dict(trial: Trial) -> dict[str, Any]:
    return {
        "configuration": trial.configuration.to_dict(),
        "measurement": trial.measurement.to_dict(),
        "confirmations": [measurement.to_dict() for measurement in trial.confirmations],
    }


def _trial(data: Mapping[str, Any]) -> Trial:
    """Numbered by whoever takes it up."""
    return Trial(
        0,
        Configuration.from_dict(data["configuration"]),
        Measurement.from_dict(data["measurement"]),
        tuple(map(Measurement.from_dict, data["confirmations"])),
    )
