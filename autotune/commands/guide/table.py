"""The guides' table for this machine: for a terminal of 80 columns, as Markdown, and as rows for a CSV."""

import textwrap
from collections.abc import Iterable, Sequence

import pandas as pd

from autotune.commands.guide.ladder import (
    LADDER,
    MICRO_STEPS,
    SAMPLES,
    THEIR_MACHINE,
    THEIR_MODEL,
    GuideRow,
    Ladder,
    share,
)
from autotune.core.measurement import Outcome
from autotune.core.units import format_bytes
from autotune.report.markdown import markdown_text
from autotune.report.summary import outcome_text, speed_text
from autotune.report.table import frame

WIDTH = 80
SECONDS = f"seconds: for {SAMPLES} samples"
METHODS = f"GA: gradient accumulation in {MICRO_STEPS} micro-steps; GC: gradient checkpointing"
THEIRS = f"The guides' own figures, not this machine's: {THEIR_MODEL}, 512 tokens, batch of 4, {THEIR_MACHINE}"
HEAD = ("method", "seconds", "samples/s", "x", "peak", "x")
BESIDE = ("method", "seconds", "samples/s", "peak", "their /s", "their peak")
_COLUMNS, _COLUMNS_BESIDE = "{:<27}{:>10}{:>16}{:>6}{:>11}{:>6}", "{:<27}{:>8}{:>14}{:>10}{:>9}{:>12}"


def ladder_lines(ladder: Ladder) -> list[str]:
    """Head, table, what is ruled out or in warning and why, notes, and the guides' own figures."""
    lines = [line for text in head(ladder) for line in _wrapped(text)]
    lines += ["", _row(ladder, BESIDE if ladder.is_theirs else HEAD)]
    lines += [_row(ladder, _cells(ladder, one)) for one in ladder.climbed]
    lines += ["", *legend(ladder)]
    lines += [line for text in remarks(ladder) for line in _wrapped(text)]
    return [*lines, "", *_wrapped(f"{THEIRS}:"), "", _COLUMNS.format(*HEAD).rstrip(), *_their_lines()]


def rung_line(ladder: Ladder) -> str:
    """The last rung that is known, in one line, for those who watch."""
    one = ladder.climbed[len(ladder.trials) - 1]
    said = f"{len(ladder.trials)} of {len(ladder.rungs)}: {one.rung.name}: "
    if not one.trial or not one.speed:
        return f"{said}{'; '.join(_why_no_figure(one))}"
    warnings = f"; warning: {'; '.join(_warnings(one))}" if _warnings(one) else ""
    return f"{said}{speed_text(one.trial)} samples/s, peak {format_bytes(one.peak_bytes)}{warnings}"


def head(ladder: Ladder) -> tuple[str, str]:
    """What was trained, and where."""
    workload, environment = ladder.workload, ladder.environment
    length = f", {workload.sequence_length} tokens" if workload.sequence_length else ""
    return (
        f"{workload.name} ({workload.task}{length}), global batch {ladder.global_batch_size}",
        f"on {environment.device} ({environment.device_name}), {format_bytes(ladder.allowed_bytes)} allowed",
    )


def legend(ladder: Ladder) -> tuple[str, str]:
    """What the table's words mean."""
    return f"{SECONDS}; {'their: the guides, see below' if ladder.is_theirs else 'x: vanilla is 1'}", METHODS


def remarks(ladder: Ladder) -> list[str]:
    """Why each rung without a figure has none, what stands in for which, warnings, notes; what is said of several once."""
    said: dict[str, list[str]] = {}
    for one in ladder.climbed:
        for text in _why_no_figure(one):
            said.setdefault(text, []).append(one.rung.name)
    told = [f"{', '.join(names)}: {text}" for text, names in said.items()]
    doubtful = [one for one in ladder.climbed if _warnings(one)]
    told += [f"? {one.rung.name}: {'; '.join(_warnings(one))}" for one in doubtful]
    return told + [f"note: {note}" for note in ladder.notes]


def _why_no_figure(one: GuideRow) -> list[str]:
    if one.rung.ruled_out:
        return [f"ruled out here ({one.rung.ruled_out})"]
    told = ["bf16 where fp16 cannot run; no run of the guides"] if one.rung.instead_of else []
    if one.trial and not one.trial.feasible:
        told.append(outcome_text(one.trial))
    return told


def _warnings(one: GuideRow) -> tuple[str, ...]:
    return one.trial.final.warnings if one.trial else ()


def short_outcome(one: GuideRow) -> str:
    """What stands where a speed would: empty where there is one."""
    if one.rung.ruled_out:
        return "ruled out"
    if one.trial is None:
        return "not measured"
    if one.speed:
        return ""
    outcome = one.trial.final.outcome
    return "does not fit" if outcome is Outcome.COMPLETED else outcome.value.replace("_", " ")


def _cells(ladder: Ladder, one: GuideRow) -> tuple[str, ...]:
    """The cells of HEAD, or of BESIDE where the guides trained the same."""
    doubtful = " ?" if _warnings(one) else ""
    speed = f"{speed_text(one.trial)}{doubtful}" if one.trial and one.speed else short_outcome(one)
    mine = (one.rung.name, _seconds(one.seconds), speed)
    if ladder.is_theirs:
        theirs = one.rung.theirs
        known = (f"{theirs.samples_per_second:.2f}", format_bytes(theirs.peak_bytes)) if theirs else ("-", "-")
        return (*mine, format_bytes(one.peak_bytes), *known)
    return (*mine, _times(one.of_vanilla[0]), format_bytes(one.peak_bytes), _times(one.of_vanilla[1]))


def _their_cells() -> list[tuple[str, ...]]:
    first = LADDER[0].theirs
    assert first is not None
    return [
        (
            rung.name,
            _seconds(one.seconds),
            f"{one.samples_per_second:.2f}",
            _times(share(one.samples_per_second, first.samples_per_second)),
            format_bytes(one.peak_bytes),
            _times(share(one.peak_bytes, first.peak_bytes)),
        )
        for rung in LADDER
        if (one := rung.theirs)
    ]


def _their_lines() -> list[str]:
    return [_COLUMNS.format(*cells) for cells in _their_cells()]


def _row(ladder: Ladder, cells: Iterable[str]) -> str:
    return (_COLUMNS_BESIDE if ladder.is_theirs else _COLUMNS).format(*cells).rstrip()


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.{0 if seconds >= 1000 else 1 if seconds >= 10 else 2}f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _wrapped(text: str) -> list[str]:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ").splitlines()


# For files --------------------------------------------------------------------------------------------------------


def ladder_page(ladder: Ladder, picture: str) -> str:
    """guide.md. picture: the name of the figure's file."""
    identity = ladder.environment.identity()
    versions = ", ".join(f"{name} {version}" for name, version in identity["versions"].items())
    parts = [f"# The guides' ladder: {markdown_text(ladder.workload.name)}", ""]
    parts += [markdown_text(f"{', '.join(head(ladder))}."), ""]
    parts += _table(BESIDE if ladder.is_theirs else HEAD, [_cells(ladder, one) for one in ladder.climbed])
    parts += ["", f"![Memory and speed of each method]({picture})", ""]
    said = (*legend(ladder), *remarks(ladder), f"versions: {versions}")
    parts += [*(f"- {markdown_text(text)}" for text in said), ""]
    parts += [f"## {THEIRS.partition(':')[0]}", "", f"{THEIRS.partition(': ')[2]}.", "", *_table(HEAD, _their_cells())]
    return "\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return [f"| {' | '.join(map(markdown_text, line))} |" for line in lines]


def ladder_frame(ladder: Ladder) -> pd.DataFrame:
    """One row a measured rung: the method, the columns of every table of trials, seconds and the guides' figures."""
    known = [one for one in ladder.climbed if one.trial]
    table = frame([one.trial for one in known if one.trial])
    table.insert(0, "method", pd.Series([one.rung.name for one in known], dtype="string"))
    table[f"seconds_for_{SAMPLES}_samples"] = pd.Series([one.seconds for one in known], dtype="float64")
    for name in ("seconds", "samples_per_second", "peak_bytes"):
        told = [getattr(one.rung.theirs, name) if one.rung.theirs else None for one in known]
        table[f"guides_{name}"] = pd.Series(told, dtype="Int64" if name == "peak_bytes" else "float64")
    return table
