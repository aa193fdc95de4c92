"""A result as a notebook shows it: the answer beside the baseline and the trials, as plain HTML of one piece."""

from collections.abc import Sequence
from html import escape

from autotune.core.trial import Trial
from autotune.core.units import format_bytes
from autotune.report.summary import headline, outcome_text, speed_line, speed_text, warnings, warnings_text
from autotune.study.result import SearchResult

ROWS = 20
"""Trials that a notebook shows: the baseline, the best, then the fastest."""
LONGEST = 200
"""Letters of a text in a cell."""
STYLE = "text-align:left; padding-right:1em"
SHORT = 20
"""Letters of a cell that is not broken into lines."""


def notebook_html(result: SearchResult) -> str:
    """Headline, best and baseline, warnings, trials. No colours of its own, so that light and dark both read; every text is
    escaped, and nothing is loaded from anywhere."""
    shown = _shown(result)
    speed = (
        f"{speed_line(result.best_trial, result.baseline_trial, result.request.objective)}. "
        if result.best_trial
        else ""
    )
    said = [f"<p><b>{_text(result.name)}</b>: {_text(speed + headline(result))}</p>", _answer(result)]
    said += [f"<p>Warning: {_text(warning)}.</p>" for warning in warnings(result)]
    if shown:
        said.append(_trials(result, shown))
    if hidden := len(result.trials) - len(shown):
        said.append(f"<p>{hidden} more trial(s): <code>result.to_frame()</code></p>")
    return f"<div>{''.join(said)}<p>Why it ended: {_text(result.stop_reason)}.</p></div>"


def _shown(result: SearchResult) -> list[Trial]:
    """The trials worth a row, in the order of their numbers."""
    first = {one.number for one in (result.baseline_trial, result.best_trial) if one is not None}
    order = sorted(
        result.trials, key=lambda one: (one.number not in first, not one.feasible, -float(one.samples_per_second or 0))
    )
    return sorted(order[:ROWS], key=lambda one: one.number)


def _answer(result: SearchResult) -> str:
    """One table of both: what it is, its speed and peak."""
    rows = []
    if result.best_trial is not None:
        base = (
            result.baseline_trial.configuration
            if result.baseline_trial and result.baseline_trial.number != result.best_trial.number
            else None
        )
        rows.append(["best", result.best_trial.configuration.unlike(base), *_figures(result.best_trial)])
    if result.baseline_trial is not None:
        rows.append(["baseline", str(result.baseline_trial.configuration), *_figures(result.baseline_trial)])
    return _table(["", "configuration", "samples/s", "peak"], rows) if rows else ""


def _trials(result: SearchResult, trials: Sequence[Trial]) -> str:
    rows = []
    for trial in trials:
        base = (
            result.baseline_trial.configuration
            if result.baseline_trial and result.baseline_trial.number != trial.number
            else None
        )
        number = (
            f"{trial.number} (best)"
            if result.best_trial and trial.number == result.best_trial.number
            else str(trial.number)
        )
        told = trial.configuration.unlike(base)
        rows.append([number, told, outcome_text(trial), *_figures(trial), warnings_text(trial)])
    return _table(["trial", "configuration", "outcome", "samples/s", "peak", "warnings"], rows)


def _figures(trial: Trial) -> list[str]:
    return [speed_text(trial), format_bytes(trial.peak_bytes)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(_cell("th", cell) for cell in head)
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, text: str) -> str:
    style = STYLE + ("; white-space:nowrap" if len(text) <= SHORT else "")
    return f'<{tag} style="{style}">{_text(text)}</{tag}>'


def _text(text: str) -> str:
    return escape(" ".join(text.split())[:LONGEST])
