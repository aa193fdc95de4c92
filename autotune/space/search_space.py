"""SearchSpace: settings and their values, and what is ruled out here and why."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from autotune.core.configuration import RANKS, Configuration, Value
from autotune.space.settings import ACCUMULATION, MICRO, SETTINGS


@dataclass(frozen=True)
class RuledOut:
    """A setting's value that is never probed, and why.

    setting: its name. value: as the space has it. reason: why not, for people.
    """

    setting: str
    value: Value
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} {self.value}: {self.reason}"


@dataclass(frozen=True)
class SearchSpace:
    """The settings of a search with the values that can be proposed, and the baseline.

    values: setting -> values, the micro-batch sizes first. baseline: the user's own configuration, made exact; its values
    need not be among those to propose (`--only`). baseline_problem: why the baseline cannot run here, or empty.
    elsewhere: setting that is none of the space -> the value that the user's own arguments mean. core: settings that are
    searched before all the others; none: all at once.
    """

    name: str
    global_batch_size: int
    values: Mapping[str, tuple[Value, ...]]
    baseline: Configuration
    baseline_problem: str = ""
    ruled_out: tuple[RuledOut, ...] = ()
    notes: tuple[str, ...] = ()
    learns_differently: tuple[str, ...] = field(default_factory=tuple)
    elsewhere: Mapping[str, Value] = field(default_factory=dict)
    core: tuple[str, ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of configurations that can be proposed: settings that know nothing of each other multiply."""
        return prod(sum(1 for _ in self._combined(group)) for group in self._groups())

    def is_possible(self) -> bool:
        """Whether there is any configuration at all."""
        return all(next(self._combined(group), None) is not None for group in self._groups())

    def configuration(self, values: Mapping[str, Value]) -> Configuration:
        """The configuration of these values, one for each setting of the space.

        A setting that means nothing beside the others has the baseline's value, where that can be proposed: what is one
        and the same training is one configuration. A micro-batch that is not exact on these ranks becomes the next
        smaller one that is, or the smallest.
        """
        micro = self._exact_micro(int(values[MICRO]), int(values.get(RANKS, 1)))
        settings = {name: self._own_value(name, values) for name in self.values if name != MICRO}
        return Configuration.exact(self.global_batch_size, micro, settings)

    def _exact_micro(self, wanted: int, ranks: int) -> int:
        if self.global_batch_size % (wanted * ranks) == 0:
            return wanted
        able = self._exact_on(ranks)
        return max((size for size in able if size <= wanted), default=min(able, default=wanted))

    def _exact_on(self, ranks: int) -> tuple[int, ...]:
        """The micro-batch sizes that can be proposed and make the global batch exact on so many ranks."""
        return tuple(int(size) for size in self.values[MICRO] if self.global_batch_size % (int(size) * ranks) == 0)

    def __contains__(self, configuration: Configuration) -> bool:
        values = configuration.values
        if values.keys() != self.values.keys() or any(values[name] not in known for name, known in self.values.items()):
            return False
        return self.configuration(values) == configuration and not self.conflict(values)

    def __iter__(self) -> Iterator[Configuration]:
        """Every configuration that can be proposed, the first setting slowest."""
        for values in self._combined(tuple(self.values)):
            yield self.configuration(values)

    def conflict(self, values: Mapping[str, Value]) -> str:
        """Why some of these values cannot stand beside each other; empty where they can, or where the others are unknown."""
        told: dict[str, Value] = {**self.elsewhere, **values}
        if MICRO in values:
            at_once = int(values[MICRO]) * int(told.get(RANKS, 1))
            told[ACCUMULATION] = max(1, self.global_batch_size // at_once)
            if self.global_batch_size % at_once:
                return (
                    f"{MICRO} {values[MICRO]}: does not make a global batch of {self.global_batch_size} on these ranks"
                )
        # A setting of the user's own arguments that is none of the space rules out what it meets there.
        of_values = {*values, *({ACCUMULATION} if MICRO in values else ())}
        asked = [name for name in told if name in SETTINGS and _means(name, told.get(self._decided_by(name)))]
        return next((f"{name} {told[name]}: {why}" for name in asked if (why := _conflict(name, told, of_values))), "")

    def beside(self, name: str) -> tuple[Value, ...]:
        """Every value of a setting, or the numbers of accumulation steps, that this space has or the user's own means."""
        if name == ACCUMULATION:
            micro, ranks = self.values[MICRO], self.beside(RANKS) or (1,)
            steps = (self.global_batch_size // (int(size) * int(several)) for size in micro for several in ranks)
            return tuple(dict.fromkeys(steps))
        return self.values.get(name) or ((self.elsewhere[name],) if name in self.elsewhere else ())

    def _groups(self) -> list[tuple[str, ...]]:
        """The settings of the space, those together that decide or rule out something of each other."""
        groups = [{name} for name in self.values]
        for name in self.values:
            others = {MICRO if other == ACCUMULATION else other for other in SETTINGS[name].forbidden}
            others |= {MICRO} if name == RANKS else set()
            tied = {name, self._decided_by(name), *others} & self.values.keys()
            groups = [*(one for one in groups if not one & tied), set().union(*(one for one in groups if one & tied))]
        return [tuple(name for name in self.values if name in one) for one in groups]

    def _combined(self, names: tuple[str, ...]) -> Iterator[dict[str, Value]]:
        """Every combination of the values of these settings that can stand beside each other and is told in one way only."""
        for values in product(*(self.values[name] for name in names)):
            told = dict(zip(names, values, strict=True))
            if not self.conflict(told) and all(self._own_value(name, told) == told[name] for name in names):
                yield told

    def _own_value(self, name: str, values: Mapping[str, Value]) -> Value:
        """The value that this setting has beside the others: its own, or the idle one where it means nothing."""
        decided_by = self._decided_by(name)
        decider = values[decided_by] if decided_by in values else self.elsewhere.get(decided_by)
        return values[name] if _means(name, decider) else self._idle(name)

    def _decided_by(self, name: str) -> str:
        """The setting on which it depends whether this one means anything, or nothing."""
        needs = SETTINGS[name].active_if
        return needs[0] if needs else ""

    def _idle(self, name: str) -> Value:
        own, values = self.baseline.values[name], self.values[name]
        return own if own in values else values[0]

    def identity(self) -> dict[str, Any]:
        """What makes this space the one it is, as plain data."""
        return {name: list(values) for name, values in self.values.items()} | {"baseline": self.baseline.to_dict()}


def _means(name: str, other: Value | None) -> bool:
    """Whether a setting means anything at this value of the setting that decides it; None: unknown, or nothing decides it."""
    needs = SETTINGS[name].active_if
    return needs is None or other is None or needs[1](other)


def _conflict(name: str, told: Mapping[str, Value], of_values: set[str]) -> str | None:
    """Why this setting's value cannot stand beside one of the others that are told, one of the two among the values."""
    rules = SETTINGS[name].forbidden.items()
    reasons = (rule(told[name], told[one]) for one, rule in rules if one in told and {name, one} & of_values)
    return next(filter(None, reasons), None)
