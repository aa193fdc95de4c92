"""Section of a Hub model card on how the training configuration was found."""

import re

from autotune.core.configuration import word
from autotune.core.loss_curves import Numerics
from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes
from autotune.report.checks import WIDE, changed_learning, warnings
from autotune.report.claim import State, claim_of, headline
from autotune.report.evidence import numerics_lines
from autotune.report.markdown import markdown_list, markdown_text
from autotune.report.trial_text import is_same, outcome_text, range_text, short_words, speed_text
from autotune.study.result import SearchResult

BEGIN, END = "<!-- autotune: begin -->", "<!-- autotune: end -->"
"""Marks around the section: what is between them is replaced, everything else is left as it is."""

TITLE = "## How the training configuration was found"
INTRODUCTION = (
    "Measured with autotune: each configuration trained for a few steps on the device below. A speed-up is proven by several "
    "measurements side by side in time with the one that the search began with."
)


def model_card_section(result: SearchResult) -> str:
    """The section in Markdown, between its marks, without a newline at the end; every name and text is escaped.

    It is for readers of the card, who know nothing of the search: it says what the answer was compared with.
    """
    lines = [BEGIN, TITLE, "", INTRODUCTION, "", markdown_text(_sentence(result))]
    if result.best_trial is not None:
        rows = _rows(result, result.best_trial)
        lines += ["", "| | |", "|---|---|", *(f"| {name} | {markdown_text(text)} |" for name, text in rows.items())]
    # The interval says already how sure the speed-up is, and how the start was measured is no concern of the reader's.
    if problems := [text for text in warnings(result) if not WIDE.search(text) and not text.startswith("baseline: ")]:
        lines += ["", *markdown_list(f"Note on the measurements: {problem}" for problem in problems)]
    return "\n".join([*lines, END])


def with_section(card: str, section: str) -> str:
    """The card's text with this section in place of an earlier one, else at the end; all other characters stay.

    card: the text of a README.md with its front matter; its line endings are kept and used.
    """
    newline = "\r\n" if "\r\n" in card else "\n"
    section = newline.join(section.splitlines())
    earlier = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if earlier.search(card):
        return earlier.sub(lambda _: section, card, count=1)
    gap = "" if not card or card.endswith(2 * newline) else newline if card.endswith(newline) else 2 * newline
    return f"{card}{gap}{section}{newline}"


def _sentence(result: SearchResult) -> str:
    """`1.46x as fast as with the Trainer's defaults (8x6, fp32), 95% interval 1.26x to 1.70x.`"""
    claim, baseline = claim_of(result), result.baseline_trial
    if claim.state is State.NO_ANSWER or baseline is None:
        return headline(result)
    whose = "the settings that the search began with" if result.request.training_args else "the Trainer's defaults"
    start = f"{whose} ({', '.join(short_words(baseline.configuration, None))})"
    if claim.state is State.NO_BASELINE:
        return f"With {start} it does not run on this device: {outcome_text(baseline)}."
    if claim.gain is None:
        return f"{start[:1].upper()}{start[1:]}: no other configuration was shown to be faster."
    interval = f", 95% interval {range_text(claim.gain)}" if claim.gain.low > 1 else ""
    return f"{claim.headline.replace('your settings', start)}{interval}."


def _rows(result: SearchResult, best: Trial) -> dict[str, str]:
    """The table of the section: name -> text."""
    baseline = result.baseline_trial
    rows = {
        "Model": f"{result.model_text}, {result.workload.task}",
        "Data": result.data_text,
        "Device": result.device_text,
        "Global batch size": str(best.configuration.global_batch_size),
        "Configuration": str(best.configuration),
        "Speed": f"{speed_text(best)} samples/s",
        "Peak memory": f"{format_bytes(best.peak_bytes)} of {format_bytes(result.allowed_bytes)} allowed",
    }
    if baseline is not None and not is_same(baseline, best):
        measured = f"{speed_text(baseline)} samples/s, {format_bytes(baseline.peak_bytes)}"
        rows["Compared with"] = f"{baseline.configuration}: {measured if baseline.feasible else outcome_text(baseline)}"
        values, before = best.configuration.values, baseline.configuration.values
        for name in changed_learning(result):
            rows[name.replace("_", " ").capitalize()] = f"{word(values[name])} instead of {word(before[name])}"
    if losses := _losses(result.numerics, best):
        rows["Losses"] = losses
    return rows | {
        "Search": f"{counted(len(result.trials), 'trial')}; {result.stop_reason}",
        "Versions": result.environment.versions_text,
    }


def _losses(numerics: Numerics | None, best: Trial) -> str:
    """`match fp32's over 30 steps (random weights)`; empty where they were not compared."""
    difference = numerics.difference(best.number) if numerics else None
    if numerics is None or numerics.flag(best.number) or difference is None or not difference.is_sensitive:
        return "; ".join(numerics_lines(numerics, best))
    return f"match {numerics.reference}'s over {difference.steps} steps ({numerics.weights})"
