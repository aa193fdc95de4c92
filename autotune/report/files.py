"""The files of a report folder, each written whole or not at all."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.core.errors import StorageFailed
from autotune.core.io import write_json
from autotune.core.measurement import Measurement
from autotune.core.trial import Trial
from autotune.probe.order import ANSWER, ORDER
from autotune.report.exports import EXPORTS, answer_of, exports
from autotune.report.formats import format_of, made
from autotune.report.html import page
from autotune.report.pictures import picture_files
from autotune.report.summary import summary
from autotune.report.table import frame
from autotune.study.result import SearchResult
from autotune.study.store import PROSPECT, keep_peaks, keep_prospect, probe_folder


def write_question(folder: Path, record: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """Write request.json and environment.json. Raises StorageFailed."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "request.json", record)
        write_json(folder / "environment.json", environment)


def write_report(folder: Path, result: SearchResult, ended: Mapping[str, Any]) -> Path:
    """Write every other file of the report; the answer's only where there is one.

    ended: what result.json holds. Raises StorageFailed.
    """
    with storage_errors(folder):
        write_json(folder / "result.json", ended)
        answers = {
            "training_arguments": result.best_setup.training_arguments,
            "model_arguments": result.best_setup.model_arguments,
        }
        answers |= {
            "environment_variables": result.best_setup.variables,
            "data_arguments": result.best_setup.data_arguments,
        }
        for name, answer in (answers | {"adapter": result.best_setup.adapter}).items():
            path = folder / f"best_{name}.json"
            if result.best_trial is not None:
                write_json(path, answer)
            else:
                path.unlink(missing_ok=True)  # an answer that was none
        _write_texts(folder, dict.fromkeys(EXPORTS) | exports(answer_of(result)))
        table = frame(result.trials, result.utilizations)
        for name in ("trials.csv", "trials.parquet"):
            write_table(folder / name, table)
        write_whole(folder / "summary.md", lambda path: path.write_text(summary(result), encoding="utf-8"))
        write_whole(folder / "report.html", lambda path: path.write_text(page(result), encoding="utf-8"))
        _write_texts(folder, picture_files(result))
        _write_probes(folder, result)
    return folder


def write_table(path: Path, table: pd.DataFrame, format: str | None = None) -> Path:
    """Write the table in one of FORMATS, by default that of the file's name; returns the path.

    Raises StorageFailed, and InvalidRequest for an unknown format or where Excel's library is missing.
    """
    whole = made(table, format or format_of(path))
    return write_file(path, whole if isinstance(whole, bytes) else whole.encode())


def write_file(path: Path, content: bytes) -> Path:
    """Write the file, whole or not at all; returns its path. Raises StorageFailed."""
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        write_whole(path, lambda beside: beside.write_bytes(content))
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror or error}.", "Name another place.") from error
    return path


@contextlib.contextmanager
def storage_errors(
    folder: Path,
    what: str = "report",
    advice: str = "Free space or name another --output-dir; the same command writes it again.",
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"The {what} in {folder} cannot be written: {error.strerror or error}.", advice) from error


def _write_texts(folder: Path, texts: Mapping[str, str | None]) -> None:
    """Files of text; those of an earlier report that this one has no text for are taken away."""
    for name, text in texts.items():
        if text is not None:
            write_whole(folder / name, lambda path, text=text: path.write_text(text, encoding="utf-8"))
        else:
            (folder / name).unlink(missing_ok=True)


def _write_probes(folder: Path, result: SearchResult) -> None:
    """Orders, measurements, estimated peaks and what was still to win, where the search did not leave them here itself."""
    for trial in result.trials:
        for place, measurement in _measurements(folder, trial):
            if not (place / ANSWER).exists():
                place.mkdir(parents=True, exist_ok=True)
                write_json(place / ORDER, {"configuration": trial.configuration.to_dict()})
                write_json(place / ANSWER, measurement.to_dict())
    keep_peaks(folder, result.estimated_peaks)
    for number, prospect in result.prospects.items():
        if not (probe_folder(folder, number) / PROSPECT).exists():
            keep_prospect(folder, number, prospect)


def _measurements(folder: Path, trial: Trial) -> list[tuple[Path, Measurement]]:
    place = folder / "probes" / f"{trial.number:04d}"
    rounds = enumerate(trial.confirmations, start=1)
    return [(place, trial.measurement), *((place / f"confirmation-{number}", one) for number, one in rounds)]


def write_whole(path: Path, write: Any) -> None:
    """Write beside the file, then rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
