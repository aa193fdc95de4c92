"""Table of the guides' methods on this machine: for a terminal of 80 columns, and as Markdown."""

from collections.abc import Iterable

from autotune.commands.guide.ladder import (
    LADDER,
    MICRO_STEPS,
    SAMPLES,
    THEIR_MACHINE,
    THEIR_MODEL,
    GuideRow,
    Ladder,
    ratio,
)
from autotune.core.measurement import Outcome
from autotune.core.units import format_bytes
from autotune.report.markdown import markdown_table, markdown_text, wrapped
from autotune.report.trial_text import outcome_text, speed_text

THEIRS = "The guides' own figures, not this machine's"
THEIR_TRAINING = f"{THEIR_MODEL}, 512 tokens, batch of 4, {THEIR_MACHINE}"
LEGEND = (
    f"seconds: for {SAMPLES} samples; x: vanilla is 1",
    f"GA: gradient accumulation in {MICRO_STEPS} micro-steps; GC: gradient checkpointing",
)
HEAD = ("method", "seconds", "samples/s", "x", "peak", "x")
_LINE = "{:<27}{:>10}{:>16}{:>6}{:>11}{:>6}"


def ladder_lines(ladder: Ladder) -> list[str]:
    """Title, table, what is ruled out or has warnings and why, notes, and the guides' own figures."""
    table, theirs = ([_LINE.format(*cells).rstrip() for cells in rows] for rows in (_table(ladder), _their_table()))
    lines = [*_all_wrapped(title(ladder)), "", *table, "", *LEGEND, *_all_wrapped(remarks(ladder))]
    return [*lines, "", *wrapped(f"{THEIRS}: {THEIR_TRAINING}:"), "", *theirs]


def latest_line(ladder: Ladder) -> str:
    """The method that was measured last."""
    row = ladder.rows[len(ladder.trials) - 1]
    head = f"{len(ladder.trials)} of {len(ladder.methods)}: {row.method.name}: "
    if not row.trial or not row.speed:
        return f"{head}{'; '.join(_reasons(row))}"
    warnings = f"; warning: {'; '.join(map(str, row.warnings))}" if row.warnings else ""
    return f"{head}{speed_text(row.trial)} samples/s, peak {format_bytes(row.peak_bytes)}{warnings}"


def title(ladder: Ladder) -> tuple[str, str]:
    """Work and device."""
    workload, environment = ladder.workload, ladder.environment
    length = f", {workload.sequence_length} tokens" if workload.sequence_length else ""
    return (
        f"{workload.name} ({workload.task}{length}), global batch {ladder.global_batch_size}",
        f"on {environment.device} ({environment.device_name}), {format_bytes(ladder.allowed_bytes)} allowed",
    )


def remarks(ladder: Ladder) -> list[str]:
    """Reasons why methods have no figure (methods with the same reason together), warnings, notes."""
    methods: dict[str, list[str]] = {}
    for row in ladder.rows:
        for reason in _reasons(row):
            methods.setdefault(reason, []).append(row.method.name)
    return [
        *(f"{', '.join(names)}: {reason}" for reason, names in methods.items()),
        *(f"? {row.method.name}: {'; '.join(map(str, row.warnings))}" for row in ladder.rows if row.warnings),
        *(f"note: {note}" for note in ladder.notes),
    ]


def _reasons(row: GuideRow) -> list[str]:
    if row.method.ruled_out:
        return [f"ruled out here ({row.method.ruled_out})"]
    reasons = ["bf16 because fp16 cannot run here; no run of the guides"] if row.method.instead_of else []
    return [*reasons, outcome_text(row.trial)] if row.trial and not row.trial.feasible else reasons


def short_outcome(row: GuideRow) -> str:
    """Words instead of a speed; empty if there is one."""
    if row.method.ruled_out:
        return "ruled out"
    if row.trial is None:
        return "not measured"
    if row.speed:
        return ""
    outcome = row.trial.final.outcome
    return "does not fit" if outcome is Outcome.COMPLETED else outcome.value.replace("_", " ")


def _table(ladder: Ladder) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [HEAD]
    for row in ladder.rows:
        mark = " ?" if row.warnings else ""
        speed = f"{speed_text(row.trial)}{mark}" if row.trial and row.speed else short_outcome(row)
        peak = format_bytes(row.peak_bytes)
        ratios = _ratio(row.speed_ratio), _ratio(row.peak_ratio)
        rows.append((row.method.name, _seconds(row.seconds), speed, ratios[0], peak, ratios[1]))
    return rows


def _their_table() -> list[tuple[str, ...]]:
    figures = {method.name: method.theirs for method in LADDER if method.theirs}
    vanilla = next(iter(figures.values()))
    return [
        HEAD,
        *(
            (
                name,
                _seconds(run.seconds),
                f"{run.samples_per_second:.2f}",
                _ratio(ratio(run.samples_per_second, vanilla.samples_per_second)),
                format_bytes(run.peak_bytes),
                _ratio(ratio(run.peak_bytes, vanilla.peak_bytes)),
            )
            for name, run in figures.items()
        ),
    ]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.{0 if seconds >= 1000 else 1 if seconds >= 10 else 2}f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _all_wrapped(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in wrapped(text)]


def ladder_page(ladder: Ladder) -> str:
    """guide.md."""
    versions = ladder.environment.identity()["versions"].items()
    lines = (*LEGEND, *remarks(ladder), f"versions: {', '.join(f'{name} {text}' for name, text in versions)}")
    parts = [f"# The guides' ladder: {markdown_text(ladder.workload.name)}", ""]
    parts += [markdown_text(f"{', '.join(title(ladder))}."), "", *markdown_table(_table(ladder)), ""]
    parts += [f"- {markdown_text(line)}" for line in lines]
    parts += ["", f"## {THEIRS}", "", f"{THEIR_TRAINING}.", "", *markdown_table(_their_table())]
    return "\n".join(parts) + "\n"
