"""The report as one page: opens offline, loads nothing, shows every name, reason and log as text."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from autotune.core import Outcome, Trial
from autotune.core.configuration import RANKS, word
from autotune.core.units import format_bytes
from autotune.report.device import device_parts
from autotune.report.evidence import evidence_lines
from autotune.report.exports import YAML_FILE, answer_of, exports
from autotune.report.logs import log_tails
from autotune.report.page_table import Table, table_of
from autotune.report.pictures import pictures
from autotune.report.snippets import snippets
from autotune.report.summary import answer_parts, headline, warnings
from autotune.report.templates import rendered, text_of
from autotune.report.trial_text import is_same, outcome_text, speed_text
from autotune.study.result import SearchResult

ROOM_FOR_LOGS = 400_000
"""Bytes of all logs together in the page: of hundreds of failed trials it stays small, and names the files of the others."""

IN_TABLE = ("best", "baseline", "", "warning")
"""Labels of the answer that the page shows otherwise than as a line."""


@dataclass(frozen=True)
class Number:
    """A number of the answer, rounded for people."""

    text: str
    trial: int
    column: str  # of trials.csv
    value: str  # as that column has it


@dataclass(frozen=True)
class Row:
    """One line of best against baseline."""

    label: str
    cells: Sequence[Number | str]
    differs: bool = False


@dataclass(frozen=True)
class Failure:
    """A trial that did not complete, and the end of its log."""

    trial: Trial
    what: str
    log: str  # empty where there is none, or no room
    log_file: str = ""  # where there is no room


def page(result: SearchResult) -> str:
    """The whole report.html: style and script are inside, and its policy lets nothing else run or load.

    Everything that is not the page's own text is escaped; the figures are `report.pictures`'.
    """
    table = table_of(result.trials, result.utilizations)
    best, baseline = result.best_trial, result.baseline_trial
    sides = [] if best is None else [("best", best)]
    if baseline is not None and not is_same(baseline, best):
        sides.append(("baseline", baseline))
    script = text_of("page.js")
    return rendered(
        "page.html",
        result=result,
        ruled_out=list(map(str, result.ruled_out)),
        surroundings=device_parts(result.environment),
        headline=headline(result),
        against=sides,
        rows=_comparison([trial for _, trial in sides], table),
        same=_same(sides),
        parts=_parts(result),
        snippets=snippets(result),
        exports={name: text for name, text in exports(answer_of(result)).items() if name != YAML_FILE},
        pictures=pictures(result),
        evidence=evidence_lines(result, best) if best is not None else [],
        warnings=warnings(result),
        table=table,
        failures=_failures(result),
        failed={trial.number for trial in result.trials if trial.final.outcome is not Outcome.COMPLETED},
        outcomes=sorted({trial.final.outcome.value for trial in result.trials}),
        limit=format_bytes(result.memory_limit_bytes),
        allowed=format_bytes(result.allowed_bytes),
        policy=_policy(script),
        style=Markup(text_of("page.css")),
        script=Markup(script),
    )


def _policy(script: str) -> str:
    """Content-Security-Policy: only this script runs, by its hash, so that no attribute and no figure can run another.

    Styles may be inline, as figures have them; since nothing loads they can send nothing away.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _comparison(trials: Sequence[Trial], table: Table) -> list[Row]:
    """Speed, peak, outcome, sizes, and every setting that is not the same on both sides."""
    if not trials:
        return []

    def numbers(column: str, texts: Sequence[str]) -> list[Number | str]:
        cells = [table.cell(trial.number, column) for trial in trials]
        return [
            Number(text, trial.number, column, cell.text if cell.value is None else cell.value) if cell.text else "-"
            for text, trial, cell in zip(texts, trials, cells, strict=True)
        ]

    rows = [
        Row("samples/s", numbers("samples_per_second", [speed_text(trial) for trial in trials]), True),
        Row("peak memory", numbers("peak_bytes", [format_bytes(trial.peak_bytes) for trial in trials]), True),
        Row("outcome", [outcome_text(trial) for trial in trials]),
    ]
    mfu = [table.cell(trial.number, "mfu").text for trial in trials]
    rows += [Row("MFU", numbers("mfu", mfu), True)] if any(mfu) else []
    values = [_values(trial) for trial in trials]
    for name in dict.fromkeys(name for side in values for name in side):
        cells = [side.get(name, "-") for side in values]
        if len(trials) == 1 or len(set(cells)) > 1:
            rows.append(Row(name.replace("_", " "), cells, len(set(cells)) > 1))
    return rows


def _values(trial: Trial) -> Mapping[str, str]:
    """Sizes and settings by name, in words."""
    configuration = trial.configuration
    sizes = {
        "micro_batch_size": configuration.micro_batch_size,
        "gradient_accumulation_steps": configuration.gradient_accumulation_steps,
        **({RANKS: configuration.data_parallel_size} if configuration.data_parallel_size > 1 else {}),
    }
    return {name: word(value) for name, value in {**sizes, **configuration.values}.items()}


def _same(sides: Sequence[tuple[str, Trial]]) -> str:
    """`checkpointing none, workers 0`: what best and baseline have in common."""
    if len(sides) < 2:
        return ""
    best, baseline = (_values(trial) for _, trial in sides)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in best.items() if baseline.get(name) == value)


def _parts(result: SearchResult) -> dict[str, list[str]]:
    """Label -> its lines, of the answer's parts that are shown as lines."""
    parts: dict[str, list[str]] = {}
    for label, text in answer_parts(result):
        if label not in IN_TABLE:
            parts.setdefault(label, []).append(text)
    return parts


def _failures(result: SearchResult) -> list[Failure]:
    """Trials that did not complete, with the logs of the first for which there is room."""
    room, failures = ROOM_FOR_LOGS, []
    logs = log_tails(result.trials, result.folder)
    for trial in result.trials:
        if trial.final.outcome is Outcome.COMPLETED:
            continue
        log = escape(logs.get(trial.number, ""))
        size = len(log.encode())
        fits = size <= room
        room -= size if fits else 0
        log_file = "" if fits else f"probes/{trial.number:04d}/log.txt"
        failures.append(Failure(trial, outcome_text(trial), log if fits else "", log_file))
    return failures
