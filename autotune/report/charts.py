"""Charts of a page as numbers: bars, dots and labels that its template draws in HTML, so that text keeps its size."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.core import Interval, Outcome, Trial
from autotune.core.units import counted, format_bytes, format_interval, three_digits
from autotune.report.claim import time_texts
from autotune.report.ladder import Rung
from autotune.report.trial_text import is_same, short_words
from autotune.study.objective import speed
from autotune.study.result import SearchResult

MOST_DOTS = 20
"""Configurations of the dot plot; the answer and the user's own are always among them."""

TICKS = 5
"""Steps of an axis, about."""

LABELLED = 18.0
"""Percent of the widest bar from which on a part has room for its name."""

STEP_PARTS = {
    "data wait": "data_wait_s",
    "forward": "forward_time_s",
    "backward": "backward_time_s",
    "optimizer": "optimizer_step_time_s",
    "Trainer": "overhead_time_s",
}
"""Part of a step -> its seconds in a measurement."""


@dataclass(frozen=True)
class Part:
    """A part of a bar. share: percent of the widest bar."""

    name: str
    role: str  # class of its colour
    share: float
    is_labelled: bool


@dataclass(frozen=True)
class Bar:
    """One bar of parts. mark: percent at which to draw a line, None for none."""

    label: str
    parts: Sequence[Part]
    end: str  # text behind it
    mark: float | None = None


@dataclass(frozen=True)
class Stack:
    """Bars of the same parts. rows: (name, class of its colour, a text for each bar) of each part, largest first."""

    caption: str
    bars: Sequence[Bar]
    rows: Sequence[tuple[str, str, Sequence[str]]]


@dataclass(frozen=True)
class Dot:
    """A configuration of the dot plot; at, low, high and memory are percent of their axes."""

    trial: Trial
    name: str
    role: str  # best, baseline or empty
    at: float
    low: float
    high: float
    is_cut: bool  # the interval goes on beyond the axis
    speed: str
    peak: str
    memory: float
    title: str


@dataclass(frozen=True)
class DotPlot:
    """Configurations by speed with their intervals, the fastest first; numbers are percent of the axis."""

    unit: str
    dots: Sequence[Dot]
    ticks: Sequence[tuple[float, str]]
    step: float  # between two ticks
    yours: float | None
    hidden: int  # configurations with a speed that are not shown
    failed: str  # `3 out of memory, 1 crashed`


def unit_of(result: SearchResult) -> str:
    """What `speed` counts: `tokens/s` where that is the objective and known."""
    best = result.best_trial or result.baseline_trial
    is_tokens = result.request.objective == "tokens_per_second" and best is not None and best.tokens_per_second
    return "tokens/s" if is_tokens else "samples/s"


def role_of(trial: Trial, result: SearchResult) -> str:
    """Class of its colour: `best`, `baseline` or none. The user's own settings are never the answer's colour."""
    if is_same(trial, result.baseline_trial):
        return "baseline"
    return "best" if is_same(trial, result.best_trial) else ""


# Cards ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A number of the answer next to that of the user's settings; bars: class of each and its length in percent."""

    label: str
    now: str
    was: str
    bars: Sequence[tuple[str, float]]


def figures(result: SearchResult) -> list[Figure]:
    """Speed and peak memory of the answer; empty where it is the user's own or there is none."""
    best, baseline = result.best_trial, result.baseline_trial
    if best is None or is_same(best, baseline):
        return []
    sides = [best, *([baseline] if baseline is not None and baseline.feasible else [])]
    roles = ["best", "baseline"]
    speeds = [float(speed(trial.final, result.request.objective) or 0.0) for trial in sides]
    peaks = [float(trial.peak_bytes or 0) for trial in sides]
    # A limit far above both would make two lines of nothing.
    whole = result.allowed_bytes if result.allowed_bytes < 3 * max(peaks) else max(*peaks, 1)
    texts = [[three_digits(value) for value in speeds], [format_bytes(trial.peak_bytes) for trial in sides]]
    labels = (f"Speed, {unit_of(result)}", f"Peak memory, of {format_bytes(result.allowed_bytes)} allowed")
    return [
        Figure(
            label,
            text[0],
            f"was {text[1]}" if len(text) > 1 else "",
            [(role, min(100.0, 100 * value / (full or 1))) for role, value in zip(roles, values, strict=False)],
        )
        for label, text, values, full in zip(labels, texts, (speeds, peaks), (max(speeds), whole), strict=True)
    ]


@dataclass(frozen=True)
class Step:
    """A rung of the ladder as bars: percent up to which it was before, and after."""

    rung: Rung
    before: float
    after: float
    speed: str
    gain: str  # `1.42x`
    interval: str  # `1.31 to 1.53`


def steps(rungs: Sequence[Rung]) -> list[Step]:
    """The ladder's bars, in percent of the fastest."""
    most = max((rung.speed for rung in rungs), default=1.0)
    drawn = []
    for before, rung in zip([None, *rungs], rungs, strict=False):
        ends = (f"{rung.gain.low:.2f}", f"{rung.gain.high:.2f}") if rung.gain else ("", "")
        drawn.append(
            Step(
                rung,
                100 * (before.speed if before else rung.speed) / most,
                100 * rung.speed / most,
                three_digits(rung.speed),
                f"{rung.gain:.2f}x" if rung.gain is not None else "",
                " to ".join(ends) if rung.gain is not None and math.isfinite(rung.gain.high) else "",
            )
        )
    return drawn


# Stacked bars ---------------------------------------------------------------------------------------------------------


def step_time(result: SearchResult) -> Stack | None:
    """Parts of a step of the user's settings and of the answer; None where no forward and backward was timed."""
    trials = [trial for trial in _sides(result) if trial.feasible and (trial.final.backward_time_s or 0.0) > 0]
    if not trials:
        return None
    parts = [{name: getattr(t.final, field) or 0.0 for name, field in STEP_PARTS.items()} for t in trials]
    roles = {"data wait": "bad", "forward": "p4", "backward": "p2", "optimizer": "p5", "Trainer": "p6"}
    labels = [_side_name(trial, result) for trial in trials]
    ends = time_texts(*(trial.final.step_time_s or 0.0 for trial in trials))
    return _stack(_step_caption(parts), labels, parts, roles, time_texts, ends)


def _step_caption(parts: Sequence[Mapping[str, float]]) -> str:
    before, after = parts[0], parts[-1]
    if len(parts) < 2:
        name = max(before, key=lambda name: before[name])
        return f"Most of a step is {name}: {before[name] / sum(before.values()):.0%}."
    name = max(before, key=lambda name: before[name] - after[name])
    saved = sum(before.values()) - sum(after.values())
    if saved <= 0 or before[name] <= after[name]:
        return "No part of a step became shorter."
    share = min(1.0, (before[name] - after[name]) / saved)
    return f"{name[:1].upper()}{name[1:]} shrinks most: {share:.0%} of the time saved."


def memory_parts(result: SearchResult) -> Stack | None:
    """Estimated parts of the peak, and what is not modelled up to the measured one; None where nothing was traced."""
    trials = [trial for trial in _sides(result) if trial.number in result.estimated_peaks]
    if not trials:
        return None
    parts, ends, marks = [], [], []
    for trial in trials:
        peak = result.estimated_peaks[trial.number]
        split = {kind.replace("_", " "): float(size) for kind, size in peak.split.to_dict().items()}
        split["unused by the allocator"] = float(max(0, peak.device_bytes - peak.split.total))
        measured = trial.peak_bytes if trial.final.outcome is not Outcome.OUT_OF_MEMORY else None
        split["not modelled"] = float(max(0, (measured or 0) - peak.device_bytes))
        parts.append(split)
        ends.append(
            f"{format_bytes(measured)} measured" if measured else f"{format_bytes(peak.device_bytes)} estimated"
        )
        marks.append(float(measured) if measured and measured < peak.device_bytes else None)
    roles = {name: f"p{place}" for place, name in enumerate(list(parts[0])[:6], 1)}
    roles |= {"unused by the allocator": "none", "not modelled": "none"}
    caption = "Parts are estimated from the model's traced step. Hatched: not in the estimate, or unused."
    labels = [_side_name(trial, result) for trial in trials]
    return _stack(caption, labels, parts, roles, lambda *sizes: list(map(format_bytes, sizes)), ends, marks)


def _stack(
    caption: str,
    labels: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    roles: Mapping[str, str],
    texts: Callable[..., list[str]],
    ends: Sequence[str],
    marks: Sequence[float | None] = (),
) -> Stack:
    most = max(sum(bar.values()) for bar in parts) or 1.0
    names = [name for name in parts[0] if any(bar.get(name, 0.0) for bar in parts)]
    bars = []
    for place, (label, bar) in enumerate(zip(labels, parts, strict=True)):
        shares = {name: 100 * bar[name] / most for name in names if bar[name]}
        drawn = [Part(name, roles[name], share, share >= LABELLED) for name, share in shares.items()]
        mark = marks[place] if marks else None
        bars.append(Bar(label, drawn, ends[place], None if mark is None else 100 * mark / most))
    return Stack(caption, bars, [(name, roles[name], texts(*(bar[name] for bar in parts))) for name in names])


def _sides(result: SearchResult) -> list[Trial]:
    """The user's settings and the answer, as far as there are any, each once."""
    trials = [trial for trial in (result.baseline_trial, result.best_trial) if trial is not None]
    return trials[:1] if len(trials) == 2 and is_same(*trials) else trials


def _side_name(trial: Trial, result: SearchResult) -> str:
    return "yours" if is_same(trial, result.baseline_trial) else "tuned"


# Dots -----------------------------------------------------------------------------------------------------------------


def dot_plot(result: SearchResult) -> DotPlot | None:
    """Every configuration with a speed, as far as there is room; None where fewer than two have one."""
    speeds = {
        trial.number: rate
        for trial in result.trials
        if trial.feasible and (rate := speed(trial.final, result.request.objective)) is not None
    }
    ranked = sorted((trial for trial in result.trials if trial.number in speeds), key=lambda t: -speeds[t.number].value)
    if len(ranked) < 2:
        return None
    special = [trial for trial in ranked if role_of(trial, result)]
    numbers = list(dict.fromkeys(trial.number for trial in [*special, *ranked]))[:MOST_DOTS]
    shown = [trial for trial in ranked if trial.number in numbers]
    fastest = speeds[ranked[0].number].value
    low = min(speeds[number].low for number in numbers)
    high = min(max(speeds[number].high for number in numbers), 1.4 * fastest)
    step = _nice((high - low) / TICKS)
    start, end = max(0.0, math.floor(low / step) * step), math.ceil(high / step) * step

    def place(value: float) -> float:
        return 100 * (min(max(value, start), end) - start) / (end - start)

    memory = max(trial.peak_bytes or 0 for trial in shown) or 1
    count = round((end - start) / step)
    yours = speeds.get(result.baseline_trial.number) if result.baseline_trial else None
    return DotPlot(
        unit_of(result),
        [_dot(trial, result, speeds[trial.number], place, end, memory) for trial in shown],
        [(100 * at / count, f"{start + at * step:.4g}") for at in range(count + 1)],
        100 / count,
        None if yours is None else place(yours.value),
        len(ranked) - len(shown),
        failures_text(result),
    )


def _dot(
    trial: Trial, result: SearchResult, rate: Interval, place: Callable[[float], float], end: float, memory: int
) -> Dot:
    base = result.baseline_trial.configuration if result.baseline_trial else None
    words = short_words(trial.configuration, base)
    text = format_interval(rate, rate.low, rate.high)
    how = f"{counted(len(trial.confirmations), 'round')} of confirmation" if trial.confirmed else "a single probe"
    return Dot(
        trial,
        " · ".join([words[0].replace("x", "\u00d7"), *words[1:]]),
        role_of(trial, result),
        place(rate.value),
        place(rate.low),
        place(rate.high),
        rate.high > end,
        text,
        format_bytes(trial.peak_bytes),
        100 * (trial.peak_bytes or 0) / memory,
        f"Trial {trial.number}: {trial.configuration}. {text} {unit_of(result)} by {how}, peak {format_bytes(trial.peak_bytes)}.",
    )


def failures_text(result: SearchResult) -> str:
    """`3 out of memory, 1 crashed`; empty where every trial fits."""
    kinds = [
        "over the limit" if trial.final.outcome is Outcome.COMPLETED else trial.final.outcome.value.replace("_", " ")
        for trial in result.trials
        if not trial.feasible
    ]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def _nice(step: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * 0.999)
