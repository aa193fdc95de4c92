"""A result as a notebook shows it: headline, warnings and trials as plain HTML in one piece."""

from collections.abc import Iterable, Sequence
from html import escape

from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes
from autotune.report.checks import checks
from autotune.report.claim import claim_of, headline
from autotune.report.trial_text import difference, outcome_text, role_text, speed_text, warnings_text
from autotune.study.result import SearchResult

ROWS = 20
"""Trials that a notebook shows: the baseline, the best, then the fastest."""
LONGEST = 200
"""Characters of a text in a cell."""
STYLE = "text-align:left; padding-right:1em"
SHORT = 20
"""Characters of a cell that is not broken into lines."""


def notebook_html(result: SearchResult) -> str:
    """Headline, what is below it, warnings, trials. No colours of its own, so that it is readable in light and dark; every
    text is escaped, and nothing is loaded from anywhere."""
    claim, trials = claim_of(result), _shown(result)
    parts = [f"<p><b>{_text(result.name)}</b>: {_text(headline(result))}</p>"]
    parts += [f"<p>{_text(detail)}</p>" for detail in claim.details]
    warned = [check for check in checks(result, claim) if check.kind == "warn"]
    parts += [f"<p>{_text(f'{check.title} {check.text} {check.action}')}</p>" for check in warned]
    if trials:
        rows = [
            [
                f"{trial.number}{role_text(trial, result)}",
                difference(trial, result),
                outcome_text(trial),
                speed_text(trial),
                format_bytes(trial.peak_bytes),
                warnings_text(trial),
            ]
            for trial in trials
        ]
        parts.append(html_table(["trial", "configuration", "outcome", "samples/s", "peak", "warnings"], rows))
    if hidden := len(result.trials) - len(trials):
        parts.append(f"<p>{counted(hidden, 'more trial')}: <code>result.to_frame()</code></p>")
    return f"<div>{''.join(parts)}<p>Why it ended: {_text(result.stop_reason)}.</p></div>"


def _shown(result: SearchResult) -> list[Trial]:
    """The trials with a row, in the order of their numbers."""
    first = {trial.number for trial in (result.baseline_trial, result.best_trial) if trial is not None}

    def rank(trial: Trial) -> tuple[bool, bool, float]:
        return trial.number not in first, not trial.feasible, -float(trial.samples_per_second or 0)

    return sorted(sorted(result.trials, key=rank)[:ROWS], key=lambda trial: trial.number)


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a notebook; its cells are escaped."""
    titles = "".join(_cell("th", cell) for cell in head)
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, text: str) -> str:
    style = STYLE + ("; white-space:nowrap" if len(text) <= SHORT else "")
    return f'<{tag} style="{style}">{_text(text)}</{tag}>'


def _text(text: str) -> str:
    return escape(" ".join(text.split())[:LONGEST])
