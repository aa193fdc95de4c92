"""The files of a report folder, each written whole or not at all."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.core.errors import StorageFailed
from autotune.core.io import write_json, write_whole
from autotune.core.slot import Slot
from autotune.probe.order import ANSWER, ORDER
from autotune.report.exports import EXPORTS, answer_of, exports
from autotune.report.figures import figure_files
from autotune.report.formats import format_of, formatted
from autotune.report.html import page
from autotune.report.summary import summary
from autotune.report.table import frame
from autotune.study.result import SearchResult
from autotune.study.store import PROSPECT, keep_peaks, keep_prospect, probe_folder, reporting_storage

ADVICE = "Free space or name another --output-dir, and run the same command again."

storage_errors = partial(reporting_storage, what="report", advice=ADVICE)
"""`reporting_storage` of a report's folder."""


def write_report(folder: Path, result: SearchResult, ended: Mapping[str, Any]) -> None:
    """Write the report of a study; the answer's files only if it is not the user's own settings, else remove them.

    ended: what result.json holds. Raises StorageFailed.
    """
    setup = result.best_setup
    table = frame(result.trials, result.utilizations, result.request.objective, result.refuted)
    answers = {
        "training_arguments": setup.training_arguments,
        "model_arguments": setup.model_arguments,
        "environment_variables": setup.variables,
        "data_arguments": setup.data_arguments,
        "adapter": setup.adapter,
    }
    texts = {"summary.md": summary(result), "report.html": page(result)}
    with storage_errors(folder):
        write_json(folder / "result.json", ended)
        for name, answer in answers.items():
            path = folder / f"best_{name}.json"
            if result.changes_settings:
                write_json(path, answer)
            else:
                path.unlink(missing_ok=True)  # of an earlier answer
        for name in ("trials.csv", "trials.parquet"):
            write_table(folder / name, table)
        for name, text in (dict.fromkeys(EXPORTS) | exports(answer_of(result)) | texts | figure_files(result)).items():
            if text is not None:
                write_whole(folder / name, text)
            else:
                (folder / name).unlink(missing_ok=True)  # of an earlier report
        _write_probes(folder, result)


def write_table(path: Path, table: pd.DataFrame, format: str | None = None) -> Path:
    """Write the table in one of FORMATS, by default that of the file's name; returns the path.

    Raises StorageFailed, and InvalidRequest for an unknown format.
    """
    return write_file(path, formatted(table, format or format_of(path)))


def write_file(path: Path, content: str | bytes) -> Path:
    """Write the file, whole or not at all; returns its path. Raises StorageFailed."""
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        write_whole(path, content)
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror or error}.", "Name another place.") from error
    return path


def _write_probes(folder: Path, result: SearchResult) -> None:
    """Orders, measurements, estimated peaks and optimality gaps, if the search did not write them here itself."""
    for trial in result.trials:
        measured = zip((0, *trial.rounds), (trial.measurement, *trial.confirmations), strict=True)
        for confirmation, measurement in measured:
            place = probe_folder(folder, Slot(trial.number, confirmation))
            if not (place / ANSWER).exists():
                place.mkdir(parents=True, exist_ok=True)
                write_json(place / ORDER, {"configuration": trial.configuration.to_dict()})
                write_json(place / ANSWER, measurement.to_dict())
    keep_peaks(folder, result.estimated_peaks)
    for number, prospect in result.prospects.items():
        if not (probe_folder(folder, Slot(number)) / PROSPECT).exists():
            keep_prospect(folder, number, prospect)
