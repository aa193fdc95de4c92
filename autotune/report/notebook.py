"""A result as a notebook shows it: the first fold of its page, and its trials folded, as HTML in one piece."""

from markupsafe import Markup, escape

from autotune.core.paths import shown
from autotune.core.trial import Trial
from autotune.core.units import counted
from autotune.report import charts
from autotune.report.fold import first_fold, ranked, with_times
from autotune.report.markdown import one_line
from autotune.report.page_table import table_of
from autotune.report.snippets import literal, setup_changes
from autotune.report.templates import rendered, text_of
from autotune.report.trial_text import outcome_text, short_words, warnings_text
from autotune.study.result import SearchResult

ROWS = 50
"""Trials that a notebook shows: the answer, the user's own settings, then the fastest."""

CELLS = ("speedup", "samples_per_second", "peak_bytes")
"""Columns of trials.csv that each row shows, as the page does."""


def notebook_html(result: SearchResult) -> str:
    """The first fold of the page in the words of Python, then the trials, the fastest first.

    Its few colours are readable in light and dark; every text is escaped, and nothing is loaded from anywhere.
    """
    trials = ranked(result)
    table = table_of(trials[:ROWS], objective=result.request.objective)
    rows = [
        (
            charts.role_of(trial, result),
            _name(trial, result),
            [table.cell(trial.number, name).text for name in CELLS],
            counted(len(trial.measurements), "time") if trial.feasible else "",
            one_line(_note(trial)),
        )
        for trial in trials[:ROWS]
    ]
    return rendered(
        "notebook.html",
        fold=first_fold(result),
        changes=_changes(result),
        rows=rows,
        baseline_word=result.baseline_word,
        hidden=len(trials) - len(rows),
        is_vague="?" in [cells[0] for _, _, cells, _, _ in rows],
        ended=result.stop_reason,
        page=None if result.folder is None else f"{shown(result.folder)}/report.html",
        counted=counted,
        style=Markup(text_of("fold.css") + text_of("notebook.css")),
    )


def _note(trial: Trial) -> str:
    """Reason why it failed or cannot win, and the warnings about its numbers."""
    if not trial.feasible:
        return outcome_text(trial)
    barred = f"cannot win: {trial.disqualified_reason}" if trial.disqualified_reason else ""
    return "; ".join(filter(None, (barred, warnings_text(trial))))


def _name(trial: Trial, result: SearchResult) -> Markup:
    baseline = result.baseline_trial
    words = short_words(trial.configuration, baseline.configuration if baseline else None)
    return with_times(str(escape(" · ".join(words))))


def _changes(result: SearchResult) -> list[str]:
    """`bf16=True  # was False` of each value that the answer changes."""
    if not result.changes_settings:
        return []
    pairs = setup_changes(result)
    lines = {name: f"{name}={literal(now)}" for name, (_, now) in pairs.items()}
    width = max(map(len, lines.values()), default=0)
    return [f"{line:<{width}}  # was {literal(pairs[name][0])}" for name, line in lines.items()]
