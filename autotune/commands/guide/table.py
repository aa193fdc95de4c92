"""Table of a ladder's methods on this machine: for a terminal of 80 columns, and as Markdown."""

from collections.abc import Iterable

from autotune.commands.guide.ladder import MICRO_STEPS, Guide, GuideRow, Ladder, ratio
from autotune.core.measurement import Outcome
from autotune.core.units import format_bytes, format_interval
from autotune.report.axes import Axis, Panel, drawn
from autotune.report.figures import memory_unit
from autotune.report.markdown import markdown_table, markdown_text, wrapped
from autotune.report.trial_text import outcome_text

THEIRS = "Its authors' own figures, not this machine's"
GA = f"GA: gradient accumulation in {MICRO_STEPS} micro-steps; GC: gradient checkpointing"
KINDS = "learning: learns otherwise than the first, beyond rounding; execution: alike"
_LINE = "{:<27}{:>16}{:>6}{:>11}{:>6}  {}"


def legend(guide: Guide) -> tuple[str, ...]:
    """Words of the table."""
    added = (
        ("each rung adds to those before it that can run here; tokens without padding",) if guide.cumulative else (GA,)
    )
    return (f"x: {guide.methods[0].name} is 1", *added, KINDS)


def ladder_lines(ladder: Ladder) -> list[str]:
    """Title, table, what is ruled out or has warnings and why, notes, and the guides' own figures."""
    table, theirs = (
        [_LINE.format(*cells).rstrip() for cells in rows] for rows in (_table(ladder), _their_table(ladder.guide))
    )
    lines = [*_all_wrapped(title(ladder)), "", *table, "", *legend(ladder.guide), *_all_wrapped(remarks(ladder))]
    return [*lines, "", *wrapped(f"{THEIRS}: {ladder.guide.training}:"), "", *theirs]


def latest_line(ladder: Ladder) -> str:
    """The method that was measured last."""
    row = ladder.rows[len(ladder.trials) - 1]
    head = f"{len(ladder.trials)} of {len(ladder.methods)}: {row.method.name}: "
    if not row.trial or not row.speed:
        return f"{head}{'; '.join(_reasons(row))}"
    warnings = f"; warning: {'; '.join(map(str, row.warnings))}" if row.warnings else ""
    return f"{head}{_speed(row)} {ladder.guide.unit}, peak {format_bytes(row.peak_bytes)}{warnings}"


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
    rows: list[tuple[str, ...]] = [_head(ladder.guide, "kind")]
    for row in ladder.rows:
        mark = " ?" if row.warnings else ""
        speed = f"{_speed(row)}{mark}" if row.speed else short_outcome(row)
        peak = format_bytes(row.peak_bytes)
        ratios = _ratio(row.speed_ratio), _ratio(row.peak_ratio)
        rows.append((row.method.name, speed, ratios[0], peak, ratios[1], "learning" if row.learning else "execution"))
    return rows


def _head(guide: Guide, *more: str) -> tuple[str, ...]:
    return ("method", guide.unit, "x", "peak", "x", *more)


def _speed(row: GuideRow) -> str:
    return format_interval(row.speed, row.speed.low, row.speed.high) if row.speed else "-"


def _their_table(guide: Guide) -> list[tuple[str, ...]]:
    figures = {method.name: method.theirs for method in guide.methods if method.theirs}
    first = next(iter(figures.values()))
    return [
        _head(guide, ""),
        *(
            (
                name,
                f"{run.speed:.{2 if run.speed < 100 else 0}f}",
                _ratio(ratio(run.speed, first.speed)),
                format_bytes(run.peak_bytes),
                _ratio(ratio(run.peak_bytes, first.peak_bytes)),
                "",
            )
            for name, run in figures.items()
        ),
    ]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _all_wrapped(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in wrapped(text)]


def ladder_figure(ladder: Ladder) -> str | None:
    """The SVG of guide.svg: speed over peak memory, with a line from each method to the next; None of fewer than two."""
    rows = [row for row in ladder.feasible if row.trial and row.peak_bytes]
    if len(rows) < 2:
        return None
    name, unit = memory_unit(row.peak_bytes for row in rows)
    places = [((row.peak_bytes or 0) / unit, float(row.speed or 0)) for row in rows]
    sizes, rates = zip(*places, strict=True)
    x, y = Axis.around(f"peak memory, {name}", sizes, 0.0, 420.0), Axis.around(ladder.guide.unit, rates, 240.0, 0.0)
    is_right = [x.at(size) > 0.6 * x.end for size in sizes]  # a name that begins there may not end in the picture
    labels = [
        ("muted", row.method.name, x.at(size) + (-5 if right else 5), y.at(rate) - 6, "end" if right else "start")
        for row, (size, rate), right in zip(rows, places, is_right, strict=True)
    ]
    dots = [
        ("best" if row.speed == max(row.speed or 0 for row in rows) else "p3", place, row.trial, row.method.name)
        for row, place in zip(rows, places, strict=True)
        if row.trial
    ]
    lines = [("muted", "polyline", places)]
    caption = "Higher is faster, further left needs less memory."
    heading = f"{ladder.guide.title}: {ladder.workload.name}"
    return drawn(heading, [Panel(x, y, dots=dots, lines=lines, labels=labels)], heading, caption)


def ladder_page(ladder: Ladder) -> str:
    """guide.md."""
    versions = ladder.environment.identity()["versions"].items()
    lines = (
        *legend(ladder.guide),
        *remarks(ladder),
        f"versions: {', '.join(f'{name} {text}' for name, text in versions)}",
    )
    parts = [f"# {ladder.guide.title}: {markdown_text(ladder.workload.name)}", ""]
    parts += [markdown_text(f"{', '.join(title(ladder))}."), "", *markdown_table(_table(ladder)), ""]
    parts += ["![Speed over memory, method by method](guide.svg)", ""] if ladder_figure(ladder) else []
    parts += [f"- {markdown_text(line)}" for line in lines]
    parts += [
        "",
        f"## {THEIRS}",
        "",
        f"{ladder.guide.training}.",
        "",
        *markdown_table([row[:-1] for row in _their_table(ladder.guide)]),
    ]
    return "\n".join(parts) + "\n"
