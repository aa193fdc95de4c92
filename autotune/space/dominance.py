"""What a trial settles about configurations that were never probed."""

from collections.abc import Collection, Iterable, Sequence

from autotune.core.configuration import Configuration, Value
from autotune.core.measurement import HOST_STAGES, Outcome
from autotune.core.trial import Trial
from autotune.space.settings import MICRO, SETTINGS

NEVER_PROBED = "environment"
"""Where a baseline is unsupported that the search space ruled out: what it shares with others may work."""

HOST_SETTINGS = ("workers", "prefetch_factor", "pin_memory")
"""Settings that take the host's memory, the more the higher their value."""

SAME_CRASHES = 3
"""Crashes of one value, none of whose trials completed, from which on it is probed no more."""

AFTER_FORWARD = ("optimizer",)
"""Settings that have not come into play when a forward fails."""


def implied_by(configuration: Configuration, trials: Iterable[Trial]) -> Trial | None:
    """The first trial that already answers for this configuration: itself, or one that rules it out; else None.

    That is also the first crash of values that crash wherever they are.
    """
    known = list(trials)
    if (answer := next((trial for trial in known if _answers(trial, configuration)), None)) is not None:
        return answer
    mine = configuration.values.items()
    return next((trial for values, trial in crashing_values(known) if values.items() <= mine), None)


def crashing_values(trials: Sequence[Trial]) -> list[tuple[dict[str, Value], Trial]]:
    """(values that crash wherever they stand together, the first trial that did), while anything has run at all.

    A value counts once SAME_CRASHES trials with it crashed and none with it completed. Beside others that all these crashes
    share, and that have never completed either, it cannot be told which it is: then only all of them together count.
    """
    crashed = [trial for trial in trials if trial.measurement.outcome is Outcome.CRASHED]
    ran = [trial.configuration.values.items() for trial in trials if trial.measurement.outcome is Outcome.COMPLETED]
    if len(crashed) < SAME_CRASHES or not ran:
        return []
    found: dict[tuple[tuple[str, Value], ...], Trial] = {}
    for value in {value: None for trial in crashed for value in trial.configuration.values.items()}:
        with_it = [trial for trial in crashed if value in trial.configuration.values.items()]
        if len(with_it) < SAME_CRASHES or any(value in items for items in ran):
            continue
        every = [trial.configuration.values.items() for trial in with_it]
        shared = [one for one in every[0] if all(one in items for items in every)]
        found.setdefault(tuple(one for one in shared if not any(one in items for items in ran)), with_it[0])
    return [(dict(values), trial) for values, trial in found.items()]


def crash_notes(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Which values were ruled out while searching because they crash, a sentence each."""
    return tuple(
        f"{' and '.join(f'{name} {value}' for name, value in values.items())}: ruled out after {SAME_CRASHES} crashes "
        f"with none completed, first in trial {trial.number} ({trial.measurement.reason.rstrip('.')})"
        for values, trial in crashing_values(trials)
    )


def _answers(trial: Trial, other: Configuration) -> bool:
    mine, measurement = trial.configuration, trial.measurement
    if mine == other:
        return True
    if mine.values.keys() != other.values.keys():
        return False
    match measurement.outcome:
        case Outcome.OUT_OF_MEMORY:
            return not measurement.observed_warnings and _at_least_as_hungry(other, mine, measurement.where)
        case Outcome.NON_FINITE_LOSS:
            return _same(mine, other, *_that_change("numerics"))
        case Outcome.UNSUPPORTED if measurement.where != NEVER_PROBED:
            # What a model or library cannot do does not depend on sizes or on how data is loaded.
            return _same_kind(mine, other, AFTER_FORWARD if measurement.where == "forward" else ())
        case Outcome.MISCONFIGURED:
            shown = measurement.settings  # None: could not be read back
            differing = [n for n, value in measurement.asked.items() if shown.get(n) not in (None, value)]
            return bool(differing) and _same(mine, other, *differing) and _same_kind(mine, other)
    return False


def _at_least_as_hungry(other: Configuration, mine: Configuration, where: str) -> bool:
    """Whether `other` needs at least the memory that `mine` did not get.

    With accumulation the gradients are alive during the next forward; at 1 they are freed before it, so that an
    out-of-memory met while accumulating settles only configurations that accumulate too.
    """
    if other.data_parallel_size != mine.data_parallel_size:
        return False
    if mine.gradient_accumulation_steps > 1 and other.gradient_accumulation_steps == 1:
        return False
    for name, value in mine.values.items():
        setting = SETTINGS[name]
        if where in HOST_STAGES:
            if name in HOST_SETTINGS and other.values[name] < value:  # type: ignore[operator]
                return False
            # The orders of hunger are those of the device: what is offloaded from it lies here.
            if name not in (*HOST_SETTINGS, MICRO) and "memory" in setting.changes and other.values[name] != value:
                return False
            if name == MICRO and other.values[name] < value:  # type: ignore[operator]
                return False
        elif "memory" in setting.changes and not setting.needs_at_least_as_much(other.values[name], value):
            return False
    return True


def _same_kind(one: Configuration, other: Configuration, but: Collection[str] = ()) -> bool:
    """Whether they differ in sizes, in how data is loaded and in the settings `but` at the most."""
    ours = [name for name, setting in SETTINGS.items() if not (setting.ordered or setting.of_process)]
    names = [name for name in ours if SETTINGS[name].changes != {"speed"} and name not in but]
    return one.data_parallel_size == other.data_parallel_size and _same(one, other, *names)


def _that_change(what: str) -> list[str]:
    return [name for name, setting in SETTINGS.items() if what in setting.changes]


def _same(one: Configuration, other: Configuration, *names: str) -> bool:
    known = [name for name in names if name in one.values]
    return bool(known) and all(one.values[name] == other.values[name] for name in known)
