"""Configurations that earlier trials rule out without a probe."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from autotune.core import Configuration, Outcome, Trial, Value
from autotune.core.measurement import HOST_STAGES
from autotune.core.note import Note, NoteKind
from autotune.judge.constants import SAME_CRASHES, SAME_SHAPES
from autotune.space.settings import MICRO, SETTINGS
from autotune.space.settings.setting import shown_values

NEVER_PROBED = "environment"
"""Stage of a baseline that the search space ruled out: values that it shares with others may work."""

TOO_FEW_DEVICES = "devices"
"""Stage of a training that was not started: it has more ranks than there are devices."""

HOST_SETTINGS = ("workers", "prefetch_factor", "pin_memory")
"""Settings that take the host's memory, more with higher values."""

AFTER_FORWARD = ("optimizer",)
"""Settings without effect on a forward pass."""


def implied_by(configuration: Configuration, trials: Iterable[Trial]) -> Trial | None:
    """The first trial with this configuration or that rules it out, also as a crash of values that always crash."""
    past = list(trials)
    for trial in past:
        if _answers(trial, configuration):
            return trial
    mine = configuration.values.items()
    return next((trial for values, trial in crashing_values(past) if values.items() <= mine), None)


def crashing_values(trials: Sequence[Trial]) -> list[tuple[dict[str, Value], Trial]]:
    """(values that crash whenever they are combined, the first trial that did), once anything has completed.

    A value counts once SAME_CRASHES trials with it crashed and none with it completed; a micro-batch size at once, if its crash
    is about shapes and came before: a model or collator made for one size takes no other. Where all these crashes share other
    values that never completed either, it is open which one is to blame: then only all of them together count.
    """
    crashed = [trial for trial in trials if trial.measurement.outcome is Outcome.CRASHED]
    completed = [trial for trial in trials if trial.measurement.outcome is Outcome.COMPLETED]
    if not completed:
        return []
    kinds = Counter(filter(None, map(_kind_of_shapes, crashed)))
    harmless = {item for trial in completed for item in trial.configuration.values.items()}
    blamed: dict[tuple[tuple[str, Value], ...], Trial] = {}
    for value in dict.fromkeys(item for trial in crashed for item in trial.configuration.values.items()):
        crashes = [trial for trial in crashed if value in trial.configuration.values.items()]
        of_size = value[0] == MICRO and any(kinds[_kind_of_shapes(trial)] >= SAME_SHAPES for trial in crashes)
        if (of_size or len(crashes) >= SAME_CRASHES) and value not in harmless:
            shared = set.intersection(*({*trial.configuration.values.items()} for trial in crashes)) - harmless
            values = tuple(item for item in crashes[0].configuration.values.items() if item in shared)
            blamed.setdefault(values, crashes[0])
    return [(dict(values), trial) for values, trial in blamed.items()]


def _kind_of_shapes(trial: Trial) -> str:
    """The reason of a crash about shapes without its numbers, else empty."""
    reason = trial.measurement.reason
    return (
        re.sub(r"\d+", "#", reason) if re.search(r"(?i)\b(?:shapes?|sizes?|batch_size|dimensions?)\b", reason) else ""
    )


def crash_notes(trials: Sequence[Trial]) -> list[Note]:
    """Notes on the values that the search ruled out because they crash."""
    sizes = {trial.configuration.micro_batch_size for trial in trials if trial.measurement.outcome is Outcome.COMPLETED}
    notes = []
    for values, first in crashing_values(trials):
        crashes = [trial for trial in trials if trial.measurement.outcome is Outcome.CRASHED]
        number = sum(values.items() <= trial.configuration.values.items() for trial in crashes)
        reason = first.measurement.reason.rstrip(".")
        if values.keys() == {MICRO} and _kind_of_shapes(first) and len(sizes) == 1:
            reason += f"; only trials with batches of {min(sizes)} completed"
        detail = f"{' and '.join(f'{name} {value}' for name, value in values.items())} ({reason})"
        notes.append(Note(NoteKind.CRASHES, {"crashes": number, "trial": first.number}, detail))
    return notes


def baseline_notes(trials: Sequence[Trial]) -> list[Note]:
    """A note on what the baseline's training shows of its settings, if that is not their values."""
    values, shown = (trials[0].configuration.values, trials[0].measurement.settings) if trials else ({}, {})
    differing = [
        f"{name} {shown[name]} instead of {value}"
        for name, value in values.items()
        if shown.get(name) is not None and str(value) not in shown_values(shown[name])
    ]
    return [Note(NoteKind.BASELINE_SHOWS, detail=", ".join(differing))] if differing else []


def _answers(trial: Trial, other: Configuration) -> bool:
    mine, measurement = trial.configuration, trial.measurement
    if mine == other:
        return True
    if mine.values.keys() != other.values.keys():
        return False
    match measurement.outcome:
        case Outcome.OUT_OF_MEMORY:
            return not measurement.observed_warnings and _needs_at_least_as_much(other, mine, measurement.where)
        case Outcome.NON_FINITE_LOSS:
            return _same(mine, other, *(name for name, setting in SETTINGS.items() if setting.learning))
        case Outcome.UNSUPPORTED if measurement.where == TOO_FEW_DEVICES:
            return other.data_parallel_size >= mine.data_parallel_size
        case Outcome.UNSUPPORTED if measurement.where != NEVER_PROBED:
            # What a model or library cannot do does not depend on sizes or on how data is loaded.
            return _same_kind(mine, other, AFTER_FORWARD if measurement.where == "forward" else ())
        case Outcome.MISCONFIGURED if measurement.where:  # names settings whose values have no effect on this model
            return _same(mine, other, *measurement.where.split(", "))
        case Outcome.MISCONFIGURED:
            shown = measurement.settings  # None: could not be read back
            requested = measurement.asked.items()
            differing = [name for name, value in requested if shown.get(name) not in (None, value)]
            return bool(differing) and _same(mine, other, *differing) and _same_kind(mine, other)
    return False


def _needs_at_least_as_much(other: Configuration, mine: Configuration, where: str) -> bool:
    """True if `other` needs at least the memory that `mine` did not get.

    With accumulation the gradients are alive during the next forward; at 1 they are freed before it. So running out of
    memory while accumulating rules out only configurations that accumulate too.
    """
    if other.data_parallel_size != mine.data_parallel_size:
        return False
    if mine.gradient_accumulation_steps > 1 and other.gradient_accumulation_steps == 1:
        return False
    for name, value in mine.values.items():
        setting = SETTINGS[name]
        if where in HOST_STAGES:
            # `needs_at_least_as_much` is about the device's memory: what is offloaded from it is here.
            if name in (*HOST_SETTINGS, MICRO):
                if other.values[name] < value:  # type: ignore[operator]
                    return False
            elif setting.costs.memory and other.values[name] != value:
                return False
        elif setting.costs.memory and not setting.costs.needs_at_least_as_much(other.values[name], value):
            return False
    return True


def _same_kind(configuration: Configuration, other: Configuration, ignored: Collection[str] = ()) -> bool:
    """True if they differ at most in sizes, in how data is loaded and in the ignored settings."""
    names = [
        name
        for name, setting in SETTINGS.items()
        if not (setting.ordered or setting.costs.of_process or setting.changes == ("speed",) or name in ignored)
    ]
    return configuration.data_parallel_size == other.data_parallel_size and _same(configuration, other, *names)


def _same(configuration: Configuration, other: Configuration, *names: str) -> bool:
    values = {name: value for name, value in configuration.values.items() if name in names}
    return bool(values) and all(other.values[name] == value for name, value in values.items())
