"""The report as one page: opens offline, asks for nothing, shows every name, reason and log as text."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from autotune.core.configuration import RANKS, word
from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.core.units import format_bytes
from autotune.report.device import device_parts
from autotune.report.exports import YAML_FILE, answer_of, exports
from autotune.report.logs import log_tails
from autotune.report.page_table import Table, table_of
from autotune.report.pictures import pictures
from autotune.report.snippets import pastes
from autotune.report.summary import answer_parts, evidence_lines, headline, outcome_text, speed_text, warnings
from autotune.study.result import SearchResult

ROOM_FOR_LOGS = 400_000
"""Bytes of all logs together, as they stand in the page: one with hundreds of failed trials stays small, and says where
the rest lies."""

IN_TABLE = ("best", "baseline", "", "warning")
"""Labels of the answer that the page shows in another way than as a line."""


@dataclass(frozen=True)
class Number:
    """A number of the answer: text: rounded, for people. value: the same as `column` of trials.csv holds it for `trial`."""

    text: str
    trial: int
    column: str
    value: str


@dataclass(frozen=True)
class Row:
    """One line of best against baseline: cells in their order, plain text or numbers; differs: not the same in both."""

    label: str
    cells: Sequence[Number | str]
    differs: bool = False


@dataclass(frozen=True)
class Failure:
    """A trial that did not complete: what happened, and the end of its log (empty: none, or no room)."""

    trial: Trial
    what: str
    log: str
    elsewhere: str = ""


def page(result: SearchResult) -> str:
    """report.html, whole: style and script are inside, and its policy lets nothing else run or load.

    Everything that is not the page's own text is escaped; the figures are `report.pictures`'.
    """
    table = table_of(result.trials, result.utilizations)
    against = _against(result)
    script = _text("page.js")
    shown = {
        "result": result,
        "ruled_out": list(map(str, result.ruled_out)),
        "surroundings": device_parts(result.environment),
        "headline": headline(result),
        "against": against,
        "rows": _comparison(against, table),
        "same": _same(against),
        "parts": _parts(result),
        "pastes": pastes(result),
        "exports": {name: text for name, text in exports(answer_of(result)).items() if name != YAML_FILE},
        "pictures": pictures(result),
        "evidence": evidence_lines(result, result.best_trial) if result.best_trial is not None else [],
        "warnings": warnings(result),
        "table": table,
        "failures": _failures(result),
        "failed": {trial.number for trial in result.trials if trial.final.outcome is not Outcome.COMPLETED},
        "outcomes": sorted({trial.final.outcome.value for trial in result.trials}),
        "limit": format_bytes(result.memory_limit_bytes),
        "allowed": format_bytes(result.allowed_bytes),
        "policy": _policy(script),
        "style": Markup(_text("page.css")),
        "script": Markup(script),
    }
    return _templates().get_template("page.html").render(shown)


@cache
def _templates() -> Environment:
    loader = PackageLoader("autotune.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@cache
def _text(name: str) -> str:
    return resources.files("autotune.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Content-Security-Policy: only this script runs, by its hash, so that no attribute and no figure can run another.

    Styles may be inline: figures carry them, and with nothing to load they can send nothing away.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _against(result: SearchResult) -> list[tuple[str, Trial]]:
    """The trials to set against each other: the best, and the baseline where it is another."""
    sides = [] if result.best_trial is None else [("best", result.best_trial)]
    if result.baseline_trial is not None and (
        result.best_trial is None or result.baseline_trial.number != result.best_trial.number
    ):
        sides.append(("baseline", result.baseline_trial))
    return sides


def _comparison(against: Sequence[tuple[str, Trial]], table: Table) -> list[Row]:
    """Speed, peak, outcome, sizes, and every setting that is not the same on both sides."""
    trials = [trial for _, trial in against]
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
    for name in dict.fromkeys(name for one in values for name in one):
        said = [one.get(name, "-") for one in values]
        if len(trials) == 1 or len(set(said)) > 1:
            rows.append(Row(name.replace("_", " "), said, len(set(said)) > 1))
    return rows


def _values(trial: Trial) -> Mapping[str, str]:
    """Sizes and settings by name, in words."""
    of = trial.configuration
    sizes = {
        "micro_batch_size": of.micro_batch_size,
        "gradient_accumulation_steps": of.gradient_accumulation_steps,
        **({RANKS: of.data_parallel_size} if of.data_parallel_size > 1 else {}),
    }
    return {name: word(value) for name, value in {**sizes, **of.values}.items()}


def _same(against: Sequence[tuple[str, Trial]]) -> str:
    """`checkpointing none, workers 0`: what best and baseline have in common."""
    if len(against) < 2:
        return ""
    best, base = (_values(trial) for _, trial in against)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in best.items() if base.get(name) == value)


def _parts(result: SearchResult) -> dict[str, list[str]]:
    """Label -> its lines, of the answer's parts that are told as lines."""
    told: dict[str, list[str]] = {}
    for label, text in answer_parts(result):
        if label not in IN_TABLE:
            told.setdefault(label, []).append(text)
    return told


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
        elsewhere = "" if fits else f"probes/{trial.number:04d}/log.txt"
        failures.append(Failure(trial, outcome_text(trial), log if fits else "", elsewhere))
    return failures
