"""First fold of a report: the headline, two figures, what to know before relying on it; of its page and of a notebook."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from autotune.core import Trial
from autotune.core.units import counted
from autotune.judge.objective import speed
from autotune.report import charts
from autotune.report.checks import Check, checks
from autotune.report.claim import Claim, claim_of
from autotune.report.trial_text import is_same
from autotune.study.result import SearchResult


@dataclass(frozen=True)
class Fold:
    """Content of the first fold; texts are HTML."""

    about: str  # what was trained on what
    claim: Claim
    headline: Markup
    details: Sequence[Markup]  # sentences
    advice: Markup  # what to do next
    command: str  # that does it, in lines; plain text
    checks: Sequence[tuple[Check, Markup, Markup]]  # each with its text, and what to do
    cards: Sequence[tuple[str, Sequence[str], Sequence[float]]]  # as of `charts.cards`


def first_fold(result: SearchResult) -> Fold:
    """The first fold of a result."""
    claim = claim_of(result)
    return Fold(
        _about(result),
        claim,
        emphasised(claim.headline, claim.figures),
        [emphasised(detail, claim.figures) for detail in claim.details],
        coded(claim.advice),
        in_lines(claim.command),
        [(check, coded(check.text), coded(check.action)) for check in checks(result)],
        charts.cards(result),
    )


def _about(result: SearchResult) -> str:
    """`llama-mini · causal-lm · global batch 32 · 256 tokens · AMD EPYC, 2 threads`."""
    workload, environment = result.workload, result.environment
    where = f"{environment.device_name}, {counted(environment.threads, 'thread')}"
    length = [f"{workload.sequence_length} tokens"] if workload.sequence_length else []
    return " · ".join([*result.title.split(", "), *length, where])


def ranked(result: SearchResult) -> list[Trial]:
    """The answer, the user's own settings, the others by speed, then what failed."""

    def rank(trial: Trial) -> tuple[bool, bool, bool, float]:
        rate = speed(trial.final, result.request.objective)
        fits = trial.feasible and rate is not None
        is_best, is_baseline = is_same(trial, result.best_trial), is_same(trial, result.baseline_trial)
        return not is_best, not is_baseline, not fits, -float(rate or 0.0)

    return sorted(result.trials, key=rank)


def emphasised(text: str, parts: Iterable[str]) -> Markup:
    """The text with these parts marked, and times as ×."""
    escaped = str(escape(text))
    for part in parts:
        escaped = escaped.replace(str(escape(part)), f"<em>{escape(part)}</em>", 1)
    return with_times(escaped)


def coded(text: str) -> Markup:
    """The text with options, and what is in backticks, as code."""
    marked = re.sub(r"(?<![\w`-])--[a-z][a-z-]+(?: \d\w*)?(?![^`]*`[^`]*$)", r"`\g<0>`", text)
    return with_times(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(marked))))


def with_times(escaped: str) -> Markup:
    """`1.58×` of `1.58x`, and `4×8` of `4x8`."""
    return Markup(re.sub(r"(?<=\d)x(?=\d|\b)", "\u00d7", escaped))


def in_lines(command: str) -> str:
    """A command with a line for each option, which a shell takes together."""
    return re.sub(r"'[^']*'| (?=--)", lambda match: match[0] if match[0] != " " else " \\\n    ", command)
