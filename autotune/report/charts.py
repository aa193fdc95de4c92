"""Numbers of a page's charts; its template draws them in HTML, so that text keeps its size on every screen."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.core import Interval, Outcome, Trial
from autotune.core.units import counted, format_bytes, format_interval, three_digits
from autotune.judge.objective import speed
from autotune.report.axes import nice
from autotune.report.claim import time_texts
from autotune.report.trial_text import is_same, short_words
from autotune.study.result import SearchResult

MOST_DOTS = 20
"""Configurations of the dot plot; the answer and the user's own are always among them."""

TICKS = 5
"""Steps of an axis, about."""

STEP_PARTS = {
    "data wait": ("data_wait_s", "bad"),
    "forward": ("forward_time_s", "p4"),
    "backward": ("backward_time_s", "p2"),
    "optimizer": ("optimizer_step_time_s", "p5"),
    "Trainer": ("overhead_time_s", "p6"),
}
"""Part of a step -> its seconds in a measurement, and the class of its colour."""


@dataclass(frozen=True)
class Stack:
    """A bar of parts for the user's settings and for the answer."""

    caption: str
    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]  # name -> its length in each bar
    roles: Mapping[str, str]  # name -> class of its colour
    ends: Sequence[str]  # text behind each bar
    texts: Callable[..., Sequence[str]]  # of the lengths of a part
    marks: Sequence[float] = ()  # of each bar, a length to mark as measured; 0 for none

    @property
    def most(self) -> float:
        """Length of the longest bar."""
        return max(map(sum, zip(*self.parts.values(), strict=True))) or 1.0


@dataclass(frozen=True)
class DotPlot:
    """Configurations by speed with their intervals, the fastest first."""

    unit: str
    rows: Sequence[tuple[Trial, Interval, str, str]]  # trial, speed, its name, what it says on hovering
    ticks: Sequence[float]
    yours: float | None  # speed of the user's settings
    hidden: int  # configurations with a speed that are not shown

    def place(self, value: float) -> float:
        """Percent of the axis, 0 and 100 for what is beyond it."""
        start, end = self.ticks[0], self.ticks[-1]
        return 100 * (min(max(value, start), end) - start) / (end - start)


def unit_of(result: SearchResult) -> str:
    """Unit of `speed`: `tokens/s` if that is the objective and known."""
    best = result.best_trial or result.baseline_trial
    is_tokens = result.request.objective == "tokens_per_second" and best is not None and best.tokens_per_second
    return "tokens/s" if is_tokens else "samples/s"


def role_of(trial: Trial, result: SearchResult) -> str:
    """Class of its colour: `best`, `baseline` or none. The user's own settings are never the answer's colour."""
    if is_same(trial, result.baseline_trial):
        return "baseline"
    return "best" if is_same(trial, result.best_trial) else ""


def cards(result: SearchResult) -> list[tuple[str, list[str], list[float]]]:
    """(label, texts, percent of a full bar) of speed and peak, of the answer and of the user's settings if they run.

    Empty if the answer is the user's own or there is none.
    """
    best, baseline = result.best_trial, result.baseline_trial
    if best is None or is_same(best, baseline):
        return []
    sides = [best, *([baseline] if baseline is not None and baseline.feasible else [])]
    speeds = [float(speed(trial.final, result.request.objective) or 0.0) for trial in sides]
    peaks = [float(trial.peak_bytes or 0) for trial in sides]
    # A limit far above both would make two lines of nothing.
    full = result.allowed_bytes if result.allowed_bytes < 3 * max(peaks) else max(*peaks, 1.0)
    allowed = f"Peak memory, of {format_bytes(result.allowed_bytes)} allowed"
    return [
        (f"Speed, {unit_of(result)}", list(map(three_digits, speeds)), [100 * rate / max(speeds) for rate in speeds]),
        (allowed, list(map(format_bytes, peaks)), [100 * peak / full for peak in peaks]),
    ]


def step_time(result: SearchResult) -> Stack | None:
    """Parts of a step of the user's settings and of the answer; None if no forward and backward was timed."""
    trials = [trial for trial in _sides(result) if trial.feasible and (trial.final.backward_time_s or 0.0) > 0]
    if not trials:
        return None
    parts = {name: [getattr(t.final, field) or 0.0 for t in trials] for name, (field, _) in STEP_PARTS.items()}
    roles = {name: role for name, (_, role) in STEP_PARTS.items()}
    ends = time_texts(*(trial.final.step_time_s or 0.0 for trial in trials))
    return Stack(_step_caption(parts), _names(trials, result), parts, roles, ends, time_texts)


def _step_caption(parts: Mapping[str, Sequence[float]]) -> str:
    saved = {name: seconds[0] - seconds[-1] for name, seconds in parts.items()}
    name = max(parts, key=lambda name: (saved[name], parts[name][0]))
    if sum(saved.values()) > 0 and saved[name] > 0:
        share = min(1.0, saved[name] / sum(saved.values()))
        return f"{name[:1].upper()}{name[1:]} shrinks most: {share:.0%} of the time saved."
    name = max(parts, key=lambda name: parts[name][-1])
    return f"Most of a step is {name}: {parts[name][-1] / (sum(seconds[-1] for seconds in parts.values()) or 1):.0%}."


def memory_parts(result: SearchResult) -> Stack | None:
    """Estimated parts of the peak, and what is not modelled up to the measured one; None if nothing was traced."""
    trials = [trial for trial in _sides(result) if trial.number in result.estimated_peaks]
    if not trials:
        return None
    peaks = [result.estimated_peaks[trial.number] for trial in trials]
    measured = [(t.peak_bytes or 0) * (t.final.outcome is not Outcome.OUT_OF_MEMORY) for t in trials]
    splits = [peak.split.to_dict() for peak in peaks]
    parts = {kind.replace("_", " "): [split[kind] for split in splits] for kind in splits[0]}
    parts["unused by the allocator"] = [max(0, peak.device_bytes - peak.split.total) for peak in peaks]
    parts["not modelled"] = [max(0, size - peak.device_bytes) for size, peak in zip(measured, peaks, strict=True)]
    sizes = zip(measured, peaks, strict=True)
    ends = [f"{format_bytes(m)} measured" if m else f"{format_bytes(peak.device_bytes)} estimated" for m, peak in sizes]
    return Stack(
        "Parts are estimated from the model's traced step. Hatched: not in the estimate, or unused.",
        _names(trials, result),
        {name: sizes for name, sizes in parts.items() if any(sizes)},
        {name: "none" if name in list(parts)[-2:] else f"p{place}" for place, name in enumerate(parts, 1)},
        ends,
        lambda *sizes: list(map(format_bytes, sizes)),
        [size * (size < peak.device_bytes) for size, peak in zip(measured, peaks, strict=True)],
    )


def _sides(result: SearchResult) -> list[Trial]:
    """The user's settings and the answer, as far as there are any, each once."""
    trials = [trial for trial in (result.baseline_trial, result.best_trial) if trial is not None]
    return trials[:1] if len(trials) == 2 and is_same(*trials) else trials


def _names(trials: Sequence[Trial], result: SearchResult) -> list[str]:
    return [result.baseline_word if is_same(trial, result.baseline_trial) else "tuned" for trial in trials]


def dot_plot(result: SearchResult) -> DotPlot | None:
    """Every configuration with a speed, as far as there is room; None if fewer than two have one."""
    rates = {t.number: rate for t in result.trials if t.feasible and (rate := speed(t.final, result.request.objective))}
    ranked = sorted((t for t in result.trials if t.number in rates), key=lambda t: -rates[t.number].value)
    if len(ranked) < 2:
        return None
    special = [trial for trial in ranked if role_of(trial, result)]
    numbers = list(dict.fromkeys(trial.number for trial in [*special, *ranked]))[:MOST_DOTS]
    low = min(rates[number].low for number in numbers)
    high = min(max(rates[number].high for number in numbers), 1.4 * rates[ranked[0].number])
    step = nice((high - low) / TICKS)
    baseline = result.baseline_trial
    rows = []
    for trial in (trial for trial in ranked if trial.number in numbers):
        rate = rates[trial.number]
        words = short_words(trial.configuration, baseline.configuration if baseline else None)
        how = counted(len(trial.confirmations), "further measurement") if trial.confirmed else "a single probe"
        measured = f"{format_interval(rate, rate.low, rate.high)} {unit_of(result)} by {how}"
        title = f"Trial {trial.number}: {trial.configuration}. {measured}, peak {format_bytes(trial.peak_bytes)}."
        rows.append((trial, rate, " · ".join(words), title))
    ticks = [step * at for at in range(math.floor(low / step), math.ceil(high / step) + 1)]
    yours = rates.get(baseline.number) if baseline else None
    return DotPlot(unit_of(result), rows, ticks, yours, len(ranked) - len(rows))
