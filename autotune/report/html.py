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
from autotune.report.exports import YAML_FILE, exports
from autotune.report.facts import Facts
from autotune.report.page_table import Table, table_of
from autotune.report.pictures import pictures
from autotune.report.snippets import pastes
from autotune.report.summary import answer_parts, evidence_lines, headline, outcome_text, speed_text, warnings

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


def page(facts: Facts) -> str:
    """report.html, whole: style and script are inside, and its policy lets nothing else run or load.

    Everything that is not the page's own text is escaped; the figures are `report.pictures`'.
    """
    table = table_of(facts.trials, facts.utilization)
    against = _against(facts)
    script = _text("page.js")
    shown = {
        "facts": facts,
        "headline": headline(facts),
        "against": against,
        "rows": _comparison(against, table),
        "same": _same(against),
        "parts": _parts(facts),
        "pastes": pastes(facts),
        "exports": {name: text for name, text in exports(facts.elsewhere).items() if name != YAML_FILE},
        "pictures": pictures(facts),
        "evidence": evidence_lines(facts, facts.best) if facts.best is not None else [],
        "warnings": warnings(facts),
        "table": table,
        "failures": _failures(facts),
        "failed": {trial.number for trial in facts.trials if trial.final.outcome is not Outcome.COMPLETED},
        "outcomes": sorted({trial.final.outcome.value for trial in facts.trials}),
        "limit": format_bytes(facts.limit_bytes),
        "allowed": format_bytes(facts.allowed_bytes),
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


def _against(facts: Facts) -> list[tuple[str, Trial]]:
    """The trials to set against each other: the best, and the baseline where it is another."""
    sides = [] if facts.best is None else [("best", facts.best)]
    if facts.baseline is not None and (facts.best is None or facts.baseline.number != facts.best.number):
        sides.append(("baseline", facts.baseline))
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


def _parts(facts: Facts) -> dict[str, list[str]]:
    """Label -> its lines, of the answer's parts that are told as lines."""
    told: dict[str, list[str]] = {}
    for label, text in answer_parts(facts):
        if label not in IN_TABLE:
            told.setdefault(label, []).append(text)
    return told


def _failures(facts: Facts) -> list[Failure]:
    """Trials that did not complete, with the logs of the first for which there is room."""
    room, told = ROOM_FOR_LOGS, []
    for trial in facts.trials:
        if trial.final.outcome is Outcome.COMPLETED:
            continue
        log = escape(facts.logs.get(trial.number, ""))
        size = len(log.encode())
        fits = size <= room
        room -= size if fits else 0
        elsewhere = "" if fits else f"probes/{trial.number:04d}/log.txt"
        told.append(Failure(trial, outcome_text(trial), log if fits else "", elsewhere))
    return told
