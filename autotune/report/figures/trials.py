"""Trials as marks: the answer green, the user's own grey, all others blue; filled if measured again."""

from collections.abc import Iterable, Mapping
from typing import Any

from autotune.report.figures.canvas import ACCENT, BASELINE, BEST, PAPER
from autotune.report.trial_text import is_same, short_words, speed_text
from autotune.study.result import SearchResult


def draw_trials(axes: Any, result: SearchResult, points: Mapping[int, tuple[float, float]]) -> None:
    """A mark a trial, which links to its row; the answer and the user's settings have their names. points: number -> place."""
    for trial in result.trials:
        if trial.number not in points:
            continue
        is_baseline, is_best = is_same(trial, result.baseline_trial), is_same(trial, result.best_trial)
        colour = BASELINE if is_baseline else BEST if is_best else ACCENT
        fill = colour if trial.confirmed else PAPER
        mark = axes.scatter(
            *points[trial.number],
            60 if is_baseline or is_best else 26,
            fill,
            edgecolors=colour,
            linewidths=1.4,
            zorder=3,
        )
        mark.set_urls([f"#trial-{trial.number}"])
        if is_baseline or is_best:
            mark.set_zorder(4)
            style = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center", "color": colour}
            axes.annotate(
                "yours" if is_baseline else "answer", points[trial.number], fontweight="bold", zorder=5, **style
            )
    axes.margins(0.12)


def trial_titles(result: SearchResult) -> dict[str, str]:
    """Link of each trial's row -> what a mark says on hovering."""
    base = result.baseline_trial.configuration if result.baseline_trial else None
    names = {trial.number: ", ".join(short_words(trial.configuration, base)) for trial in result.trials}
    return {f"#trial-{t.number}": f"{t.number}: {names[t.number]}, {speed_text(t)} samples/s" for t in result.trials}


def memory_unit(sizes: Iterable[float | None]) -> tuple[str, int]:
    """The name and bytes of the unit for the largest of these sizes."""
    return ("GiB", 2**30) if max((size or 0 for size in sizes), default=0) >= 2**30 else ("MiB", 2**20)
