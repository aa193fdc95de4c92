"""A result as a notebook shows it: the answer beside the baseline and the trials, as plain HTML of one piece."""

from collections.abc import Sequence
from html import escape

from autotune.core.trial import Trial
from autotune.core.units import format_bytes
from autotune.report.facts import Facts
from autotune.report.summary import headline, outcome_text, speed_line, speed_text, warnings, warnings_text

ROWS = 20
"""Trials that a notebook shows: the baseline, the best, then the fastest."""
LONGEST = 200
"""Letters of a text in a cell."""
STYLE = "text-align:left; padding-right:1em"
SHORT = 20
"""Letters of a cell that is not broken into lines."""


def notebook_html(facts: Facts) -> str:
    """Headline, best and baseline, warnings, trials. No colours of its own, so that light and dark both read; every text is
    escaped, and nothing is loaded from anywhere."""
    shown = _shown(facts)
    speed = f"{speed_line(facts.best, facts.baseline, facts.objective)}. " if facts.best else ""
    said = [f"<p><b>{_text(facts.name)}</b>: {_text(speed + headline(facts))}</p>", _answer(facts)]
    said += [f"<p>Warning: {_text(warning)}.</p>" for warning in warnings(facts)]
    if shown:
        said.append(_trials(facts, shown))
    if hidden := len(facts.trials) - len(shown):
        said.append(f"<p>{hidden} more trial(s): <code>result.to_frame()</code></p>")
    return f"<div>{''.join(said)}<p>Why it ended: {_text(facts.stop_reason)}.</p></div>"


def _shown(facts: Facts) -> list[Trial]:
    """The trials worth a row, in the order of their numbers."""
    first = {one.number for one in (facts.baseline, facts.best) if one is not None}
    order = sorted(
        facts.trials, key=lambda one: (one.number not in first, not one.feasible, -float(one.samples_per_second or 0))
    )
    return sorted(order[:ROWS], key=lambda one: one.number)


def _answer(facts: Facts) -> str:
    """One table of both: what it is, its speed and peak."""
    rows = []
    if facts.best is not None:
        base = facts.baseline.configuration if facts.baseline and facts.baseline.number != facts.best.number else None
        rows.append(["best", facts.best.configuration.unlike(base), *_figures(facts.best)])
    if facts.baseline is not None:
        rows.append(["baseline", str(facts.baseline.configuration), *_figures(facts.baseline)])
    return _table(["", "configuration", "samples/s", "peak"], rows) if rows else ""


def _trials(facts: Facts, trials: Sequence[Trial]) -> str:
    rows = []
    for trial in trials:
        base = facts.baseline.configuration if facts.baseline and facts.baseline.number != trial.number else None
        number = f"{trial.number} (best)" if facts.best and trial.number == facts.best.number else str(trial.number)
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
