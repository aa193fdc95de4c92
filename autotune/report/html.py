"""The report as one page: opens offline, loads nothing, shows every name, reason and log as text."""

import base64
import hashlib
from collections.abc import Sequence

from markupsafe import Markup

from autotune.core import Outcome, Trial
from autotune.core.configuration import RANKS, word
from autotune.core.units import format_bytes
from autotune.report.device import study_parts
from autotune.report.evidence import evidence_lines
from autotune.report.exports import YAML_FILE, answer_of, exports
from autotune.report.logs import log_tails
from autotune.report.page_table import table_of
from autotune.report.pictures import pictures
from autotune.report.snippets import snippets
from autotune.report.summary import answer_parts, headline, warnings
from autotune.report.templates import rendered, text_of
from autotune.report.trial_text import is_same, outcome_text, sizes_and_settings, speed_text
from autotune.study.result import SearchResult

MOST_LOGS = 50
"""Failed trials whose logs are in the page, so that it stays small; it names the files of the others."""

IN_TABLE = ("best", "baseline", "", "warning")
"""Labels of the answer that the page shows otherwise than as a line."""


def page(result: SearchResult) -> str:
    """The whole report.html: style and script are inside, and its policy lets nothing else run or load.

    Everything that is not the page's own text is escaped; the figures are `report.pictures`'.
    """
    best, baseline = result.best_trial, result.baseline_trial
    sides = [] if best is None else [("best", best)]
    if baseline is not None and not is_same(baseline, best):
        sides.append(("baseline", baseline))
    rows, same = _comparison(result, [trial for _, trial in sides])
    failed = [trial for trial in result.trials if trial.final.outcome is not Outcome.COMPLETED]
    script = text_of("page.js")
    return rendered(
        "page.html",
        result=result,
        ruled_out=list(map(str, result.ruled_out)),
        where=study_parts(result),
        headline=headline(result),
        against=sides,
        rows=rows,
        same=same,
        parts=_parts(result),
        snippets=snippets(result),
        exports={name: text for name, text in exports(answer_of(result)).items() if name != YAML_FILE},
        pictures=pictures(result),
        evidence=evidence_lines(result, best) if best is not None else [],
        warnings=warnings(result),
        table=table_of(result.trials, result.utilizations),
        failures=[(trial, outcome_text(trial)) for trial in failed],
        logs=log_tails(failed[:MOST_LOGS], result.folder),
        more_logs={trial.number: f"probes/{trial.number:04d}/log.txt" for trial in failed[MOST_LOGS:]},
        outcomes=sorted({trial.final.outcome.value for trial in result.trials}),
        limit=format_bytes(result.memory_limit_bytes),
        allowed=format_bytes(result.allowed_bytes),
        policy=_policy(script),
        style=Markup(text_of("palette.css") + text_of("page.css")),
        script=Markup(script),
    )


def _policy(script: str) -> str:
    """Content-Security-Policy: only this script runs, by its hash, so that no attribute and no figure can run another.

    Styles may be inline, as figures have them; since nothing loads they can send nothing away.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _comparison(result: SearchResult, trials: Sequence[Trial]) -> tuple[dict[str, list[str]], str]:
    """Label -> a text for each trial, of speed, peak, outcome and the sizes and settings that differ; and what is the same."""
    shares = [use.mfu if (use := result.utilizations.get(trial.number)) else None for trial in trials]
    rows = {
        "samples/s": [speed_text(trial) for trial in trials],
        "peak memory": [format_bytes(trial.peak_bytes) for trial in trials],
        "outcome": [outcome_text(trial) for trial in trials],
        **({"MFU": ["" if share is None else f"{share:.1%}" for share in shares]} if any(shares) else {}),
    }
    values = [{name: word(value) for name, value in sizes_and_settings(trial).items()} for trial in trials]
    same: list[str] = []
    for name in dict.fromkeys(name for side in values for name in side):
        cells = [side.get(name, "-") for side in values]
        if name == RANKS and set(cells) == {"1"}:
            continue
        if len(trials) > 1 and len(set(cells)) == 1:
            same.append(f"{name.replace('_', ' ')} {cells[0]}")
        else:
            rows[name.replace("_", " ")] = cells
    return rows, ", ".join(same)


def _parts(result: SearchResult) -> dict[str, list[str]]:
    """Label -> its lines, of the answer's parts that are shown as lines."""
    parts: dict[str, list[str]] = {}
    for label, text in answer_parts(result):
        if label not in IN_TABLE:
            parts.setdefault(label, []).append(text)
    return parts
