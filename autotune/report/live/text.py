"""What every display of a running search shows: cells of its table, and the lines below."""

import time

from autotune.core.configuration import RANKS, Configuration, word
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_seconds
from autotune.report.markdown import one_line
from autotune.report.trial_text import is_same, speed_text
from autotune.study.plan import Progress

ROWS = 12
"""Latest trials that are shown while the search runs."""

OUTCOMES = {
    "out_of_memory": "no memory",
    "non_finite_loss": "NaN loss",
    "timed_out": "timed out",
    "misconfigured": "not as asked",
}
"""Outcomes of more than 12 characters, shortened."""

HEADER = ("#", "configuration", "outcome", "samples/s", "peak")


class LiveView:
    """A display of a running search: its last progress, when that came, and what Ctrl-C was answered."""

    def __init__(self) -> None:
        self._last: Progress | None = None
        self._notice = ""
        self._begun = self._since = time.monotonic()

    def _take(self, progress: Progress) -> None:
        if progress.kind == "stopping":
            self._notice = progress.message
        else:
            self._last, self._since = progress, time.monotonic()

    def _elapsed(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._begun


def lines(progress: Progress, elapsed_s: float, probing_s: float | None = None) -> list[str]:
    """The lines below the table; the first is empty where nothing runs. probing_s: how long that runs, where it is shown."""
    elapsed = f"{format_seconds(elapsed_s)} elapsed, {left_text(progress)}"
    return [doing_text(progress, probing_s), elapsed, *filter(None, (best_text(progress), bound_text(progress)))]


def cells(trial: Trial, best: Trial | None, baseline: Trial, whole: bool = False) -> tuple[str, str, str, str, str]:
    """A trial's row under HEADER: the best one has a star, a number with a warning a question mark."""
    return (
        f"{trial.number}{'*' if is_same(trial, best) else ' '}",
        short(trial, baseline, whole),
        outcome_word(trial),
        f"{speed_text(trial)} {'?' if trial.final.warnings else ' '}",
        format_bytes(trial.peak_bytes),
    )


def short(trial: Trial, baseline: Trial, whole: bool = False) -> str:
    """What differs from the baseline, without names that are plain from their values.

    whole: the baseline's own settings too, where they are few; the report has them all.
    """
    configuration, before = trial.configuration, baseline.configuration.values
    sizes = [
        configuration.micro_batch_size,
        configuration.gradient_accumulation_steps,
        configuration.data_parallel_size,
    ]
    words = ["x".join(map(str, sizes if sizes[-1] > 1 else sizes[:2]))]
    if is_same(trial, baseline):
        words.append("baseline")
        before = {} if whole and len(configuration.settings) <= 8 else before
    for name, value in configuration.settings:
        if name != RANKS and before.get(name) != value:
            label = name.replace("checkpointing", "ckpt").replace("pin_memory", "pin")
            words.append(str(value) if name in ("precision", "optimizer") else f"{label}={word(value)}")
    return " ".join(words)


def outcome_word(trial: Trial) -> str:
    """How a trial ended, in at most 12 characters."""
    if trial.feasible:
        return "confirmed" if trial.confirmed else "ok (early)" if trial.final.ended_early else "ok"
    return OUTCOMES.get(trial.final.outcome.value, trial.final.outcome.value)


def baseline_of(progress: Progress, trial: Trial | None = None) -> Configuration | None:
    """The baseline's configuration, which others are compared with; None for the baseline itself."""
    first = progress.trials[0] if progress.trials else None
    return first.configuration if first and (trial is None or trial.number != first.number) else None


def doing_text(progress: Progress, seconds: float | None = None) -> str:
    """What runs now and for how long: `probing 3 (12 s): 16 x 1, precision bf16`; empty where nothing does."""
    since = "" if seconds is None else f" ({format_seconds(seconds)})"
    if progress.kind in ("probing", "confirming") and progress.configuration is not None:
        first = progress.trials[0].number if progress.trials else 0
        is_baseline = progress.number == first
        what = "the baseline" if is_baseline else progress.configuration.unlike(baseline_of(progress))
        return one_line(
            f"{progress.kind} {progress.number}{since}: {what}{f' ({progress.message})' if progress.message else ''}"
        )
    return one_line(f"{progress.message}{since}") if progress.kind in ("preparing", "finishing") else ""


def best_text(progress: Progress) -> str:
    """`best so far 41.2 ± 0.3 samples/s (trial 2), 1.62x the baseline`; empty where nothing fits yet."""
    best = progress.best
    if best is None:
        return ""
    text = f"best so far {speed_text(best)} samples/s (trial {best.number})"
    if progress.speedup is None or is_same(best, progress.trials[0]):
        return text
    return f"{text}, {progress.speedup:.2f}x the baseline"


def left_text(progress: Progress) -> str:
    """How many probes are left, and how much time where that is limited."""
    time_left = f", {format_seconds(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    return f"{progress.probes_left} probe(s) left{time_left}"


def bound_text(progress: Progress) -> str:
    """By how much the best may still be beaten, as far as the sampler knows; else empty."""
    if progress.max_gain is None:
        return ""
    return f"remaining speed-up at most {max(0.0, progress.max_gain):.0%}"
