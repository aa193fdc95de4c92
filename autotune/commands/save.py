"""Report folder of a result: written when a search begins and ends, and read again."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from warnings import warn

from autotune.core import Environment, InvalidRequest, Trial, TuningRequest, Workload, read_json, write_json
from autotune.core.device import Device
from autotune.core.errors import UnreadableFile
from autotune.core.io import MISSING, Unreadable, read_record
from autotune.core.loss_curves import Numerics
from autotune.core.note import Note
from autotune.core.paths import hidden, named, scrubbed
from autotune.core.prospect import Forecast
from autotune.core.real_run import RealRun
from autotune.core.sanity import SanityCheck
from autotune.core.slot import Slot
from autotune.core.stop_reason import KILLED, StopReason
from autotune.core.warning import ResultWarning, WarningKind
from autotune.judge.standing import Standing
from autotune.probe.order import ANSWER, ORDER
from autotune.report.claim import claim_fields
from autotune.report.snippets import launch_lines
from autotune.report.trial_text import speedup_fields
from autotune.space.search_space import RuledOut
from autotune.space.utilization import Arithmetic
from autotune.study.loss_check import compare_losses, disqualify_flagged
from autotune.study.result import SearchResult
from autotune.study.store import (
    EXPLAINED,
    REALIZED,
    REQUEST,
    VERIFICATION,
    Damage,
    folder_number,
    probe_folder,
    read_peaks,
    read_prospects,
    read_references,
    read_trial,
)
from autotune.workload.model.sent_model import BUILT, ITSELF

RESULT = "result.json"
"""File of the search's end, written there: one that was killed leaves none, also if an earlier one had come to its end."""

OWN_WEIGHTS = {
    ITSELF: "the weights of the model as it was sent",
    BUILT: "weights as your build function makes them",
}
"""Origin of a caller's model -> its weights; of a model that is sent without them they are random."""


def begin(result: SearchResult, folder: str | Path) -> None:
    """Write what is known before the first probe: request.json and environment.json. Raises StorageFailed."""
    from autotune.report.files import storage_errors  # loads pandas, which reading a study does without

    folder = Path(folder)
    record = {
        "request": _public(result.request).to_dict(),
        "workload": _plain_workload(result.workload),
        "identity": result.identity,
        "memory_limit_bytes": result.memory_limit_bytes,
        "allowed_bytes": result.allowed_bytes,
        "space_size": result.space_size,
        "ruled_out": [value.to_dict() for value in result.ruled_out],
        "notes": [note.to_dict() for note in result.notes],
        "warnings": [warning.to_dict() for warning in result.study_warnings if warning not in result.unreadable],
        "finished": result.finished,
        "arithmetic": result.arithmetic.to_dict(),
        "date": result.date,
    }
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REQUEST, record)
        write_json(folder / "environment.json", result.environment.to_dict())


def save(result: SearchResult, folder: str | Path) -> Path:
    """Write the whole report folder; returns it. Raises StorageFailed, and InvalidRequest as `result.setup`."""
    from autotune.report.files import write_report

    best, _ = result.best_trial, result.best_setup  # raises before anything is written
    ended = {
        "statement": result.stop_reason,
        "stop": result.stop.to_dict(),
        "complete": result.complete,
        **claim_fields(result),
        "best": best and best.number,
        **speedup_fields(result),
        "launch": launch_lines(result),
        "answered_at_once": result.duplicate_proposals,
        "left_out": list(result.left_out),
        "numerics": result.numerics and result.numerics.to_dict(),
        "sanity_check": result.sanity_check and result.sanity_check.to_dict(),
        "forecast": result.forecast and result.forecast.to_dict(),
        **({"devices": [device.to_dict() for device in result.devices]} if result.devices else {}),
    }
    begin(replace(result, finished=""), folder)
    write_report(Path(folder), replace(result, request=_public(result.request)), ended)
    if result.finished:  # last: a search that was killed before it writes its report again
        begin(result, folder)
    return Path(folder)


def fields_of_saved(folder: str | Path) -> dict[str, Any]:
    """Fields of the result in a report folder.

    Raises InvalidRequest if there is none, or if what cannot be read decides the answer: request, environment, result, and the
    baseline's measurements. Warns with `UnreadableFile` of each other file that cannot be read; `study_warnings` has them too.
    """
    folder = Path(folder)
    if not (folder / REQUEST).exists():
        raise InvalidRequest(f"There is no study in {folder}.", "Run `autotune studies` to list them.")
    fields = _part(folder / REQUEST, _of_request, "Restore it from a copy; what was measured is in probes.")
    environment = _part(folder / "environment.json", Environment.from_dict)
    # Written before request.json says that the search is finished; a search that was killed has none.
    is_written = (folder / RESULT).exists() or fields["finished"]
    ended = _part(folder / RESULT, _of_result) if is_written else _of_result({})
    damage: Damage = {}
    request, numerics = fields["request"], ended["numerics"]
    trials = [trial.with_training_steps(request.training_steps) for trial in _trials(folder, damage)]
    if ended["stop"].kind is KILLED.kind:  # nobody has compared them at its end
        numerics = compare_losses(Standing(tuple(trials), request.objective), read_references(folder, damage))
        numerics = numerics and replace(numerics, weights=weights_text(fields["workload"]))
    if trials and numerics and not request.allow_loss_difference:
        disqualify_flagged(trials, numerics, request.require_parity)
    extras = {
        "verification": _extra(folder / VERIFICATION, damage),
        "explanation": _extra(folder / EXPLAINED, damage),
        "last_real_run": _extra(folder / REALIZED, damage, RealRun.from_dict),
        "prospects": read_prospects(folder, damage),
        "estimated_peaks": read_peaks(folder, damage),
    }
    unreadable = [
        ResultWarning(WarningKind.UNREADABLE_FILE, detail=f"{path.relative_to(folder)} cannot be read ({why})")
        for path, why in damage.items()
    ]
    for warning in unreadable:
        warn(f"in the study {folder.name} {warning}", UnreadableFile, stacklevel=3)
    return {
        **fields,
        **ended,
        "numerics": numerics,
        **extras,
        "workload": _with_its_code(fields["workload"], folder),
        "environment": environment,
        "trials": trials,
        "study_warnings": (*fields["study_warnings"], *unreadable),
        "folder": folder,
    }


def _trials(folder: Path, damage: Damage) -> list[Trial]:
    """The trials that can be read, in the order of their numbers. Raises InvalidRequest if the baseline's files cannot."""
    numbers = sorted(
        number for path in (folder / "probes").glob("*") if (number := folder_number(path.name)) is not None
    )
    places = {number: probe_folder(folder, Slot(number)) for number in numbers}
    read = [read_trial(place, number, damage) for number, place in places.items()]
    others = [path for path in (folder / "probes").glob(f"*/{ANSWER}") if folder_number(path.parent.name) is None]
    damage |= {
        path: "its folder has no trial's number" for path in others if not path.parent.name.startswith("device-")
    }
    trials = [trial for trial in read if trial is not None]
    if trials and trials[0].number:  # it was measured before all others
        damage.setdefault(probe_folder(folder, Slot()) / ANSWER, MISSING)
    for path, why in damage.items():
        if probe_folder(folder, Slot()) in path.parents:
            raise InvalidRequest(
                f"{path} cannot be read: {why}. It is of your own settings, so there is nothing to compare with.",
                "Run the same search again: it measures them again and keeps everything else.",
            )
    return trials


def _part(
    path: Path, build: Callable[[Any], Any], advice: str = "Run the same search again: it writes it anew."
) -> Any:
    """Object built from a file that every study has. Raises InvalidRequest."""
    try:
        return read_record(path, build)
    except FileNotFoundError:
        raise InvalidRequest(f"{path} cannot be read: {MISSING}.", advice) from None
    except Unreadable as error:
        raise InvalidRequest(f"{path} cannot be read: {error}.", advice) from error


def _extra(path: Path, damage: Damage, build: Callable[[Any], Any] = dict) -> Any:
    """The content of a file that a study may lack; None if it cannot be read."""
    try:
        return read_record(path, build) if path.exists() else None
    except Unreadable as error:
        damage[path] = str(error)
        return None


def _of_request(record: dict[str, Any]) -> dict[str, Any]:
    """Fields of the result in request.json. Raises KeyError, TypeError or ValueError for other data."""
    return {
        "request": TuningRequest.from_dict(record["request"]),
        "workload": Workload.from_dict(record["workload"]),
        "memory_limit_bytes": record["memory_limit_bytes"],
        "allowed_bytes": record["allowed_bytes"],
        "space_size": record["space_size"],
        "ruled_out": [*map(RuledOut.from_dict, record["ruled_out"])],
        "notes": [*map(Note.from_dict, record["notes"])],
        "study_warnings": tuple(map(ResultWarning.from_dict, record["warnings"])),
        "identity": record["identity"],
        "finished": record["finished"],
        "date": record["date"],
        "arithmetic": Arithmetic.from_dict(record["arithmetic"]),
    }


def _of_result(ended: dict[str, Any]) -> dict[str, Any]:
    """Fields of the result in result.json. Raises as `_of_request`."""
    numerics, sanity_check, forecast = (ended.get(name) for name in ("numerics", "sanity_check", "forecast"))
    return {
        "stop": StopReason.from_dict(ended["stop"]) if "stop" in ended else KILLED,
        "complete": ended.get("complete", False),
        "duplicate_proposals": ended.get("answered_at_once", 0),
        "left_out": tuple(ended.get("left_out", ())),
        "numerics": Numerics.from_dict(numerics) if numerics else None,
        "sanity_check": SanityCheck.from_dict(sanity_check) if sanity_check else None,
        "forecast": Forecast.from_dict(forecast) if forecast else None,
        "devices": tuple(map(Device.from_dict, ended.get("devices", ()))),
    }


def weights_text(workload: Workload) -> str:
    """Origin of the weights with which the compared losses began."""
    if workload.user_objects and workload.source in OWN_WEIGHTS:
        return OWN_WEIGHTS[workload.source]
    return "the model's own weights" if workload.weights else "random weights"


def _public(request: TuningRequest) -> TuningRequest:
    """The request without absolute paths, which a report folder does not show."""
    texts = {name: hidden(value) for name, value in vars(request).items() if isinstance(value, str)}
    return replace(request, **texts)  # type: ignore[arg-type]


def _plain_workload(workload: Workload) -> dict[str, Any]:
    """The workload as plain data, its absolute paths left out also."""
    places = {name: named(getattr(workload, name)) for name in ("name", "source", "weights")}
    return workload.to_dict() | places | {"text_source": scrubbed(workload.text_source)}


def _with_its_code(workload: Workload, folder: Path) -> Workload:
    """The workload with the folder of the model's own code, as the first order of the search has it."""
    if workload.trust_remote_code:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            order = read_json(probe_folder(folder, Slot()) / ORDER)
            return replace(workload, source=str(order["workload"]["source"]))
    return workload
