"""The report as one page: opens offline, loads nothing, shows every name, reason and log as text."""

import base64
import contextlib
import hashlib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from markupsafe import Markup, escape

from autotune.core import Outcome, Trial
from autotune.core.io import file_end
from autotune.core.paths import scrubbed
from autotune.core.slot import Slot
from autotune.core.units import counted, format_bytes, format_interval, format_seconds, three_digits
from autotune.probe.order import LOG
from autotune.report import charts
from autotune.report.claim import State
from autotune.report.device import study_parts
from autotune.report.evidence import evidence_lines
from autotune.report.exports import YAML_FILE, answer_of, exports
from autotune.report.figures import figures
from autotune.report.fold import first_fold, ranked, with_times
from autotune.report.ladder import ladder
from autotune.report.markdown import sentence
from autotune.report.page_table import table_of
from autotune.report.snippets import snippets
from autotune.report.summary import share_lines
from autotune.report.templates import rendered, text_of
from autotune.report.trial_text import failures_text, outcome_text
from autotune.study.result import SearchResult
from autotune.study.store import probe_folder

MOST_LOGS = 50
"""Failed trials whose logs are in the page, so that it stays small; it names the files of the others."""

LINES, BYTES = 40, 4000
"""Largest numbers of lines and bytes of a log's end."""

MOST_ROWS = 30
"""Rows of the table up to which it has no frame of its own."""


def page(result: SearchResult) -> str:
    """The whole report.html: style and script are inside, and its policy lets nothing else run or load.

    Everything that is not the page's own text is escaped; the figures are `report.figures`'.
    """
    fold, best = first_fold(result), result.best_trial
    claim = fold.claim
    failed = [trial for trial in result.trials if trial.final.outcome is not Outcome.COMPLETED]
    trials = ranked(result)
    script = text_of("page.js")
    return rendered(
        "page.html",
        result=result,
        claim=claim,
        fold=fold,
        times=lambda text: with_times(str(escape(text))),
        date=_date(result.date),
        share="\n".join(share_lines(result)),
        snippets=snippets(result),
        exports={name: text for name, text in exports(answer_of(result)).items() if name != YAML_FILE},
        rungs=ladder(result),
        unit=charts.unit_of(result),
        step_time=charts.step_time(result) if claim.state is not State.ALONE else None,
        memory=charts.memory_parts(result),
        dots=charts.dot_plot(result),
        drawn=figures(result),
        evidence=[f"{claim.verdict.text}. {claim.reason}"] * bool(claim.verdict)
        + ([sentence(line) for line in evidence_lines(result, best)] if best else []),
        where=study_parts(result),
        table=table_of(trials, result.utilizations, result.request.objective, result.refuted),
        roles={trial.number: charts.role_of(trial, result) for trial in result.trials},
        framed=len(result.trials) > MOST_ROWS,
        failed=failures_text(result.trials),
        failures=[(trial, outcome_text(trial)) for trial in failed],
        logs=log_tails(failed[:MOST_LOGS], result.folder),
        more_logs={trial.number: f"probes/{trial.number:04d}/log.txt" for trial in failed[MOST_LOGS:]},
        outcomes=sorted({trial.final.outcome.value for trial in result.trials}),
        probing=format_seconds(sum(trial.probe_seconds for trial in result.trials)),
        counted=counted,
        digits=three_digits,
        interval=format_interval,
        bytes=format_bytes,
        policy=_policy(script),
        style=Markup("".join(map(text_of, ("palette.css", "fold.css", "page.css", "figure.css")))),
        script=Markup(script),
    )


def _policy(script: str) -> str:
    """Content-Security-Policy: only this script runs, by its hash, so that no attribute and no figure can run another.

    Styles may be inline, as figures have them; since nothing loads they can send nothing away.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _date(text: str) -> str:
    day = date.fromisoformat(text) if text else None
    return f"{day.day} {day:%b %Y}" if day else ""


def log_tails(trials: Sequence[Trial], folder: Path | None) -> dict[int, str]:
    """Trial number -> the end of its log, of those that did not complete and left one.

    folder: the study's, for logs that are no longer in memory. Of absolute paths the last part is left, and tokens are
    masked: reports are handed on.
    """
    logs = {trial.number: _tail(trial, folder) for trial in trials if trial.final.outcome is not Outcome.COMPLETED}
    return {number: tail for number, log in logs.items() if (tail := _scrubbed_end(log))}


def _tail(trial: Trial, folder: Path | None) -> str:
    if trial.final.log_tail or folder is None:
        return trial.final.log_tail
    rounds = zip(trial.rounds, trial.confirmations, strict=True)
    failed = next((number for number, measured in rounds if not measured.feasible), 0)
    with contextlib.suppress(OSError):
        return file_end(probe_folder(folder, Slot(trial.number, failed)) / LOG, BYTES).decode(errors="replace")
    return ""


def _scrubbed_end(log: str) -> str:
    is_cut = len(log.encode()) >= BYTES  # then its first line is a part of one, and may be the end of a path
    text = log[-BYTES:].partition("\n")[2] if is_cut else log
    return scrubbed("\n".join(text.strip().splitlines()[-LINES:]))
