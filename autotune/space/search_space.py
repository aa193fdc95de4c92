"""Search space: settings and their values, and what is ruled out here and why."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from autotune.core.configuration import RANKS, Configuration, Value
from autotune.core.io import Serializable
from autotune.core.kept import KeptSetting
from autotune.core.note import Note
from autotune.space.settings import ACCUMULATION, MICRO, SETTINGS
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.setting import Rules


@dataclass(frozen=True)
class RuledOut(Serializable):
    """A setting's value that is never probed, and why."""

    setting: str  #: its name
    value: Value  #: as the space has it
    reason: Exclusion  #: why not

    def __str__(self) -> str:
        return f"{self.setting} {self.value}: {self.reason}"


@dataclass(frozen=True)
class SearchSpace:
    """The settings of a search with the values that can be proposed, and the baseline."""

    name: str
    global_batch_size: int
    values: Mapping[str, tuple[Value, ...]]  #: setting -> values, the micro-batch sizes first
    baseline: Configuration  #: the user's own, made exact; its values need not be among those to propose (`--only`)
    baseline_problem: str = ""  #: why the baseline cannot run here
    ruled_out: tuple[RuledOut, ...] = ()
    notes: tuple[Note, ...] = ()
    learns_differently: tuple[str, ...] = ()
    fixed_by_user: Mapping[str, Value] = field(default_factory=dict)  #: of settings outside the space
    core: tuple[str, ...] = ()  #: settings that are searched before all the others; none: all at once
    device_rules: Mapping[str, Rules] = field(default_factory=dict)  #: setting -> its rules on this device
    tried: Mapping[str, tuple[Value, ...]] = field(
        default_factory=dict
    )  #: values of trials that are not proposed any more

    @cached_property
    def size(self) -> int:
        """Number of configurations that can be proposed: independent groups of settings multiply."""
        return prod(sum(1 for _ in self._combinations(group)) for group in self._groups())

    def configuration(self, values: Mapping[str, Value]) -> Configuration:
        """The configuration of these values, one for each setting of the space.

        A setting without effect has the baseline's value, if that can be proposed, so that the same training is one
        configuration. A micro-batch that is not exact on these ranks becomes the next smaller one that is, or the smallest.
        """
        all_values = {**self.fixed_by_user, **values}
        wanted, ranks = int(values[MICRO]), int(values.get(RANKS, 1))
        exact = [int(size) for size in self.values[MICRO] if self._is_exact(int(size), ranks)]
        if not self._is_exact(wanted, ranks):
            wanted = max((size for size in exact if size <= wanted), default=min(exact, default=wanted))
        settings = {name: self._effective_value(name, all_values) for name in self.values if name != MICRO}
        return Configuration.exact(self.global_batch_size, wanted, settings)

    def _is_exact(self, micro_batch_size: int, ranks: int) -> bool:
        return self.global_batch_size % (micro_batch_size * ranks) == 0

    def __contains__(self, configuration: Configuration) -> bool:
        values = configuration.values
        if values.keys() != self.values.keys() or any(values[name] not in self.values[name] for name in values):
            return False
        return self.configuration(values) == configuration and not self.conflict(values)

    def __iter__(self) -> Iterator[Configuration]:
        """Every configuration that can be proposed, the first setting slowest."""
        return map(self.configuration, self._combinations(tuple(self.values)))

    def conflict(self, values: Mapping[str, Value]) -> str:
        """Reason why these values cannot be combined, with each other or with the user's.

        Empty if they can, or if the values of other settings are missing.
        """
        all_values, ours = {**self.fixed_by_user, **values}, set(values)
        if MICRO in values:
            micro, ranks = int(values[MICRO]), int(all_values.get(RANKS, 1))
            if not self._is_exact(micro, ranks):
                return f"{MICRO} {micro}: does not make a global batch of {self.global_batch_size} on these ranks"
            all_values[ACCUMULATION] = self.global_batch_size // (micro * ranks)
            ours.add(ACCUMULATION)
        for name, value in all_values.items():
            rules = self.rules(name) if name in SETTINGS and is_active(name, all_values) else {}
            for other, rule in rules.items():
                if other in all_values and {name, other} & ours and (reason := rule(value, all_values[other])):
                    return f"{name} {value}: {reason}"
        return ""

    def keeping(self, kept: Iterable[KeptSetting], tried: Sequence[Configuration] = ()) -> "SearchSpace":
        """The space in which these settings have only the values that they allow. tried: configurations of trials."""
        reasons, alone = dict[str, Exclusion](), dict[str, tuple[Value, ...]]()
        for each in kept:
            if (name := each.setting) in self.values:
                own = self.baseline.values[name]
                reasons[name] = Exclusion(ExclusionKind.KEPT, detail=each.text)
                alone[name] = tuple(value for value in self.values[name] if each.allows(value, own)) or (own,)
        gone = [
            RuledOut(name, value, reasons[name])
            for name in alone
            for value in self.values[name]
            if value not in alone[name]
        ]
        was_tried = {name: tuple(dict.fromkeys(each.values[name] for each in tried)) for name in alone}
        values = {**self.values, **alone}
        return replace(self, values=values, ruled_out=(*self.ruled_out, *gone), tried=was_tried) if alone else self

    def rules(self, name: str) -> Rules:
        """Values of other settings that this setting's cannot be combined with, on any device and on this one."""
        return {**SETTINGS[name].forbidden, **self.device_rules.get(name, {})}

    def possible_values(self, name: str) -> tuple[Value, ...]:
        """The values of a setting, or the numbers of accumulation steps, that this space has or the user's own arguments mean."""
        if name == ACCUMULATION:
            pairs = product(self.values[MICRO], self.possible_values(RANKS) or (1,))
            return tuple(dict.fromkeys(self.global_batch_size // (int(micro) * int(ranks)) for micro, ranks in pairs))
        return self.values.get(name) or ((self.fixed_by_user[name],) if name in self.fixed_by_user else ())

    def _groups(self) -> list[tuple[str, ...]]:
        """The settings of the space, in one group those that decide or rule out something of each other."""
        groups = [{name} for name in self.values]
        for name in self.values:
            tied = {name, *self.rules(name), *(SETTINGS[name].active_if or ())[:1]}
            if name == RANKS or ACCUMULATION in tied:
                tied.add(MICRO)
            tied &= self.values.keys()
            apart = [group for group in groups if not group & tied]
            groups = [*apart, set().union(*(group for group in groups if group & tied))]
        return [tuple(name for name in self.values if name in group) for group in groups]

    def _combinations(self, names: tuple[str, ...]) -> Iterator[dict[str, Value]]:
        """Every valid combination of the values of these settings, each training once."""
        for combination in product(*(self.values[name] for name in names)):
            values = dict(zip(names, combination, strict=True))
            all_values = {**self.fixed_by_user, **values}
            if not self.conflict(values) and all(
                self._effective_value(name, all_values) == values[name] for name in names
            ):
                yield values

    def _effective_value(self, name: str, all_values: Mapping[str, Value]) -> Value:
        """This setting's value, or if it has no effect the baseline's, if that can be proposed."""
        if is_active(name, all_values):
            return all_values[name]
        inactive, values = self.baseline.values[name], self.values[name]
        return inactive if inactive in values else values[0]

    def identity(self) -> dict[str, Any]:
        """Identity of this space: its values and baseline, as plain data."""
        return {name: list(values) for name, values in self.values.items()} | {"baseline": self.baseline.to_dict()}


def is_active(name: str, all_values: Mapping[str, Value]) -> bool:
    """True if a setting has an effect with these values, and if the setting that decides it is not among them."""
    condition = SETTINGS[name].active_if
    return condition is None or condition[0] not in all_values or condition[1](all_values[condition[0]])
