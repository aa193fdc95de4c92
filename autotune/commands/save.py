"""Report folder of a result: written when a search begins and ends, and read again."""

import contextlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.core import Environment, InvalidRequest, TuningRequest, Workload, read_json
from autotune.core.device import Device
from autotune.core.loss_curves import Numerics
from autotune.core.paths import named, scrubbed
from autotune.core.sanity import SanityCheck
from autotune.probe.order import ORDER
from autotune.report.claim import claim_fields
from autotune.report.snippets import launch_lines
from autotune.report.trial_text import speedup_fields
from autotune.space.search_space import RuledOut
from autotune.space.utilization import Arithmetic
from autotune.study.result import SearchResult
from autotune.study.store import EXPLAINED, REQUEST, VERIFICATION, probe_folder, read_peaks, read_prospects, read_trial


def begin(result: SearchResult, folder: str | Path) -> None:
    """Write what is known before the first probe: request.json and environment.json. Raises StorageFailed."""
    from autotune.report.files import write_question  # loads pandas, which reading a study does without

    record = {
        "request": _plain_request(result.request.to_dict()),
        "workload": _plain_workload(result.workload),
        "identity": result.identity,
        "memory_limit_bytes": result.memory_limit_bytes,
        "allowed_bytes": result.allowed_bytes,
        "space_size": result.space_size,
        "ruled_out": [asdict(value) for value in result.ruled_out],
        "notes": list(result.notes),
        "warnings": list(result.study_warnings),
        "finished": result.finished,
        "arithmetic": result.arithmetic.to_dict(),
        "date": result.date,
    }
    write_question(Path(folder), record, result.environment.to_dict())


def save(result: SearchResult, folder: str | Path) -> Path:
    """Write the whole report folder; returns it. Raises StorageFailed, and InvalidRequest as `result.setup`."""
    from autotune.report.files import write_report

    best, _ = result.best_trial, result.best_setup  # raises before anything is written
    ended = {
        "statement": result.stop_reason,
        "complete": result.complete,
        **claim_fields(result),
        "best": best and best.number,
        **speedup_fields(result),
        "launch": launch_lines(result),
        "answered_at_once": result.duplicate_proposals,
        "left_out": list(result.left_out),
        "barred": {
            str(trial.number): trial.disqualified_reason for trial in result.trials if trial.disqualified_reason
        },
        "numerics": result.numerics and result.numerics.to_dict(),
        "rehearsal": result.rehearsal and result.rehearsal.to_dict(),
        **({"devices": [device.to_dict() for device in result.devices]} if result.devices else {}),
    }
    begin(replace(result, finished=""), folder)
    write_report(Path(folder), result, ended)
    if result.finished:  # last: a search that was killed before it writes its report again
        begin(result, folder)
    return Path(folder)


def fields_of_saved(folder: str | Path) -> dict[str, Any]:
    """Fields of the result in a report folder. Raises InvalidRequest where there is none or it is damaged."""
    folder = Path(folder)
    try:
        record = read_json(folder / REQUEST)
        ended = read_json(folder / "result.json") if (folder / "result.json").exists() else {}
        numbers = sorted(int(path.name) for path in (folder / "probes").glob("*") if path.name.isdigit())
        trials = [read_trial(folder / "probes" / f"{number:04d}", number) for number in numbers]
        request = TuningRequest.from_dict(record["request"])
        reasons = ended.get("barred", {})
        numerics, rehearsal = ended.get("numerics"), ended.get("rehearsal")
        return {
            "request": request,
            "workload": _with_its_code(Workload.from_dict(record["workload"]), folder),
            "environment": Environment.from_dict(read_json(folder / "environment.json")),
            "trials": [
                replace(
                    trial.with_training_steps(request.training_steps),
                    disqualified_reason=reasons.get(str(trial.number), ""),
                )
                for trial in trials
                if trial is not None
            ],
            "stop_reason": ended.get("statement", "the search was interrupted"),
            "complete": ended.get("complete", ended.get("numerics") is not None),
            "memory_limit_bytes": record["memory_limit_bytes"],
            "allowed_bytes": record["allowed_bytes"],
            "space_size": record["space_size"],
            "ruled_out": [_ruled_out(row) for row in record["ruled_out"]],
            "notes": record["notes"],
            "study_warnings": tuple(record.get("warnings", record.get("doubts", ()))),
            "identity": record["identity"],
            "finished": record.get("finished", ""),
            "duplicate_proposals": ended.get("answered_at_once", 0),
            "left_out": tuple(ended.get("left_out", ())),
            "numerics": Numerics.from_dict(numerics) if numerics else None,
            "rehearsal": SanityCheck.from_dict(rehearsal) if rehearsal else None,
            "verification": read_json(folder / VERIFICATION) if (folder / VERIFICATION).exists() else None,
            "explanation": read_json(folder / EXPLAINED) if (folder / EXPLAINED).exists() else None,
            "date": record.get("date", ""),
            "prospects": read_prospects(folder),
            "estimated_peaks": read_peaks(folder),
            "arithmetic": Arithmetic.from_dict(record["arithmetic"]) if "arithmetic" in record else Arithmetic(),
            "devices": tuple(map(Device.from_dict, ended.get("devices", ()))),
            "folder": folder,
        }
    except FileNotFoundError as error:
        raise InvalidRequest(f"There is no study in {folder}.", "`autotune studies` lists those there are.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"The study in {folder} cannot be read: {error!r}.", "Search again with --fresh."
        ) from error


def _plain_request(request: dict[str, Any]) -> dict[str, Any]:
    """The request with names instead of absolute paths, which a report folder does not show."""
    shown = {name: named(value) if isinstance(value, str) else value for name, value in request.items()}
    return shown | {"output_dir": "reports"}


def _plain_workload(workload: Workload) -> dict[str, Any]:
    """The workload as plain data, its absolute paths left out likewise."""
    places = {name: named(getattr(workload, name)) for name in ("name", "source", "weights")}
    return workload.to_dict() | places | {"text_source": scrubbed(workload.text_source)}


def _with_its_code(workload: Workload, folder: Path) -> Workload:
    """The workload with the folder of the model's own code, as the first order of the search has it."""
    if workload.trust_remote_code:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            order = read_json(probe_folder(folder, 0) / ORDER)
            return replace(workload, source=str(order["workload"]["source"]))
    return workload


def _ruled_out(data: dict[str, Any]) -> RuledOut:
    """Of this version's files and of earlier ones, which call a setting a lever."""
    return RuledOut(data.get("setting") or data["lever"], data["value"], data["reason"])
