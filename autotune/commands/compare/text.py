"""Text of a comparison: a numbered table of figures, and a paragraph on each study."""

from collections.abc import Sequence
from typing import Any

from autotune.commands.layout import aligned, ratio_text
from autotune.core.interval import Interval
from autotune.core.units import counted, format_bytes, format_interval, three_digits
from autotune.report.claim import State, Verdict, gain_words
from autotune.report.columns import FIRST
from autotune.report.markdown import wrapped
from autotune.report.trial_text import interval_of

StudyRow = dict[str, Any]
"""A row of `autotune.commands.compare.columns` as plain values, None if one is missing."""


def compared_lines(rows: Sequence[StudyRow]) -> list[str]:
    """Lines for a terminal of 80 columns."""
    lines = [*aligned(figures(rows), 0), "  speeds in samples / second, with 95% intervals"]
    for number, row in enumerate(rows, start=1):
        name, *sentences = about(row)
        lines += ["", *wrapped(name, f"{number}  ", "     ")]
        lines += [line for sentence in sentences for line in wrapped(sentence, "   ", "     ")]
    return lines


def figures(rows: Sequence[StudyRow]) -> list[list[str]]:
    """Head and rows: number, speeds (samples / second ± half their 95 % interval), speed-up, peak; MFU if known."""
    table = [["#", "baseline", "best", "speed-up", "peak"]]
    table += [
        [
            str(number),
            *(_speed_text(interval_of(row, f"{kind}_samples_per_second")) for kind in ("baseline", "best")),
            _speed_up_text(row),
            format_bytes(row["best_peak_bytes"]),
        ]
        for number, row in enumerate(rows, start=1)
    ]
    if any(row["best_mfu"] is not None for row in rows):
        shares = ("-" if row["best_mfu"] is None else f"{row['best_mfu']:.1%}" for row in rows)
        table = [[*cells, share] for cells, share in zip(table, ["MFU", *shares], strict=True)]
    return table


def about(row: StudyRow) -> list[str]:
    """Sentences on a study: its name, work, machine, best configuration, and how it compares with the others."""
    length = f", {row['sequence_length']} tokens" if row["sequence_length"] else ""
    best = f"{row['best_unlike_baseline']}{'' if row['confirmed'] else '; not proven'}"
    lines = [
        row["study"],
        f"{row['model']}, {row['task']}{length}, global batch {row['global_batch_size']}",
        f"{row['device']} ({row['device_name']}), {row['versions']}",
        f"best: {row['why_no_best'] or best}",
        f"{counted(row['trials'], 'trial')}, {counted(row['probes'], 'probe')}",
    ]
    if cost := _cost_text(row):
        lines.append(f"cost of a million samples: {cost}")
    if row["why_no_speedup"]:
        lines.append(f"{'speed-up' if row['speedup'] is not None else 'no speed-up'}: {row['why_no_speedup']}")
    if row["compared_with"]:
        ratio = interval_of(row, "times_as_fast")
        is_vague = ratio is None or ratio.is_vague
        text = "cannot tell whether it is faster than" if is_vague else f"{ratio_text(ratio)} as fast as"
        lines.append(f"{text} {row['compared_with']}")
    if row["why_not_compared"] not in ("", FIRST):
        lines.append(f"compared with no other: {row['why_not_compared']}")
    return [*lines, *([f"warnings: {row['warnings']}"] if row["warnings"] else [])]


def _speed_text(speed: Interval | None) -> str:
    return "-" if speed is None else format_interval(speed, speed.low, speed.high)


def _speed_up_text(row: StudyRow) -> str:
    """`1.46x (1.26 to 1.70)`, `about 1.5x (1.3 to 1.9)` if that is rough, or words if there is none."""
    gain = interval_of(row, "speedup")
    if gain is None:
        return gain_words(State(row["state"]))
    return f"{'' if row['verdict'] == Verdict.SOLID else 'about '}{ratio_text(gain)}"


def _cost_text(row: StudyRow) -> str:
    """`2.71 -> 2.15 EUR`, the baseline's before the best's; a dash for an unknown one, empty if both are."""
    kinds = ("baseline", "best") if row["best_trial"] != 0 else ("best",)
    costs = [row[f"{kind}_cost_per_million_samples"] for kind in kinds]
    if not any(costs):
        return ""
    return f"{' -> '.join('-' if cost is None else three_digits(cost) for cost in costs)} {row['currency']}".strip()
