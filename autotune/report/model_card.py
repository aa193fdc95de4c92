"""Section of a Hub model card on how the training configuration was found."""

import re

from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes
from autotune.report.checks import changed_learning, warnings
from autotune.report.claim import headline
from autotune.report.evidence import numerics_lines
from autotune.report.markdown import markdown_list, markdown_text
from autotune.report.trial_text import is_same, speed_text
from autotune.study.result import SearchResult

BEGIN, END = "<!-- autotune: begin -->", "<!-- autotune: end -->"
"""Marks around the section: what is between them is replaced, everything else is left as it is."""

TITLE = "## How the training configuration was found"
INTRODUCTION = (
    "Found by measurement with `autotune`: each configuration that was tried trained for a few steps on the device, "
    "the best ones again in turns."
)


def model_card_section(result: SearchResult) -> str:
    """The section in Markdown, between its marks, without a newline at the end; every name and text is escaped."""
    lines = [BEGIN, TITLE, "", INTRODUCTION, "", markdown_text(headline(result))]
    if result.best_trial is not None:
        rows = _rows(result, result.best_trial)
        lines += ["", "| | |", "|---|---|", *(f"| {name} | {markdown_text(text)} |" for name, text in rows.items())]
    if problems := warnings(result):
        lines += ["", *markdown_list(f"Warning: {problem}" for problem in problems)]
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


def _rows(result: SearchResult, best: Trial) -> dict[str, str]:
    """The table of the section: name -> text."""
    baseline = result.baseline_trial
    versions = ", ".join(f"{name} {version}" for name, version in result.environment.versions.items())
    rows = {
        "Model": f"{result.model_text}, {result.workload.task}",
        "Data": result.data_text,
        "Device": result.device_text,
        "Global batch size": str(best.configuration.global_batch_size),
        "Configuration": str(best.configuration),
        "Speed": f"{speed_text(best)} samples/s{'' if best.confirmed else ' (not confirmed)'}",
        "Peak memory": f"{format_bytes(best.peak_bytes)} of {format_bytes(result.allowed_bytes)} allowed",
    }
    if baseline is not None and not is_same(baseline, best):
        rows["Before"] = (
            f"{baseline.configuration}: {speed_text(baseline)} samples/s, {format_bytes(baseline.peak_bytes)}"
        )
    if learned := changed_learning(result):
        rows["Learns differently"] = ", ".join(f"{name} {how}" for name, how in learned.items())
    if losses := numerics_lines(result.numerics, best):
        rows["Losses"] = "; ".join(losses)
    return rows | {"Search": f"{counted(len(result.trials), 'trial')}; {result.stop_reason}", "Versions": versions}
