"""Ladder from the user's settings to the answer: what each change brought, by trials that were measured.

your settings ──bf16──> trial 1 ──4 x 8──> trial 14 ──2 workers──> the answer
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core import Configuration, Interval, Trial
from autotune.core.configuration import RANKS
from autotune.judge.objective import round_ratio, speed
from autotune.report.trial_text import interval_of, is_same, setting_words, short_words
from autotune.space.settings import MICRO
from autotune.study.result import SearchResult

SAME = 0.03
"""Gains whose interval holds 1 are noise up to this far from 1, else rough."""


@dataclass(frozen=True)
class Rung:
    """A configuration on the way. The first is the user's own, without a gain."""

    label: str  # what changed: `bf16, 2 workers`
    speed: float  # samples or tokens / second
    gain: Interval | None = None  # speed over that of the rung below
    trial: int | None = None  # its number; None if `autotune explain` measured it

    @property
    def mark(self) -> str:
        """`rough` or `noise` if the interval of the gain holds 1, else empty."""
        if self.gain is None or not self.gain.low <= 1 <= self.gain.high:
            return ""
        return "noise" if abs(self.gain - 1) <= SAME else "rough"


def ladder(result: SearchResult) -> list[Rung]:
    """The rungs as `autotune explain` measured them, else through trials; empty without two configurations to compare.

    The longest way wins on which every trial has the answer's value in all settings of the one before and in more; among
    those the one with most trials that were measured again. Settings that no trial changed alone share a rung.
    """
    best, baseline = result.best_trial, result.baseline_trial
    if best is None or baseline is None or is_same(best, baseline) or not baseline.feasible:
        return []
    if result.explanation and (rungs := _explained(result, result.explanation, best, baseline)):
        return rungs
    path = _path(result.trials, baseline, best)
    objective = result.request.objective
    rungs = []
    for before, after in zip([None, *path], path, strict=False):
        if (rate := speed(after.final, objective)) is None:
            return []
        if before is None:
            rungs.append(Rung(result.baseline_name, rate.value, trial=after.number))
        else:
            label = change_words(before.configuration, after.configuration)
            rungs.append(Rung(label, rate.value, round_ratio(after, before, objective), after.number))
    return rungs


def change_words(before: Configuration, after: Configuration) -> str:
    """`4x8, bf16`: the settings that differ, with their values after."""
    old, new = before.values, after.values
    names = [name for name in new if new[name] != old.get(name)]
    size = short_words(after, None)[:1] if {MICRO, RANKS} & set(names) else []
    return ", ".join([*size, *(setting_words(name, new[name]) for name in names if name not in (MICRO, RANKS))])


def _path(trials: Sequence[Trial], baseline: Trial, best: Trial) -> list[Trial]:
    """The trials of the longest way, both ends included."""
    old, new = baseline.configuration.values, best.configuration.values
    changed = frozenset(name for name in new if new[name] != old.get(name))
    taken: dict[int, frozenset[str]] = {}
    for trial in trials:
        values = trial.configuration.values
        on_the_way = values.keys() == new.keys() and all(values[name] in (old.get(name), new[name]) for name in new)
        if on_the_way and trial.feasible and not trial.measurement.ended_early:
            taken[trial.number] = frozenset(name for name in changed if values[name] == new[name])
    by_number = {trial.number: trial for trial in trials}
    ways: dict[int, list[int]] = {baseline.number: [baseline.number]}
    inner = [number for number, names in taken.items() if frozenset() < names < changed]
    for number in [*sorted(inner, key=lambda number: len(taken[number])), best.number]:
        names = changed if number == best.number else taken[number]
        below = [way for last, way in ways.items() if last == baseline.number or taken[last] < names]
        ways[number] = [*max(below, key=lambda way: (len(way), sum(by_number[n].confirmed for n in way))), number]
    return [by_number[number] for number in ways[best.number]]


def _explained(result: SearchResult, explanation: Mapping[str, Any], best: Trial, baseline: Trial) -> list[Rung]:
    """The path of `explanation.json`; empty if it is of another answer or does not start at the user's settings."""
    nodes = [explanation.get("start"), *(step["after"] for step in explanation.get("path", ()))]
    if not all(node and node["samples_per_second"] for node in nodes) or len(nodes) < 2:
        return []
    configurations = [Configuration.from_dict(node["configuration"]) for node in nodes]
    if (configurations[0], configurations[-1]) != (baseline.configuration, best.configuration):
        return []
    rungs = [Rung(result.baseline_name, nodes[0]["samples_per_second"])]
    for step, before, after in zip(explanation["path"], configurations, configurations[1:], strict=False):
        speed_after = step["after"]["samples_per_second"]
        rungs.append(Rung(change_words(before, after), speed_after, interval_of(step, "gain")))
    return rungs
