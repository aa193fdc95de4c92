"""SearchSpace: levers and their values, and what is ruled out here and why."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from autotune.configuration import RANKS, Configuration, Value
from autotune.environment import Environment
from autotune.errors import InvalidRequest, did_you_mean
from autotune.levers import ACCUMULATION, LEVERS, MICRO, Lever
from autotune.levers.micro_batch_size import divisors, tiled
from autotune.request import TuningRequest
from autotune.space_file import TILES, core_levers, read_space
from autotune.tiles import multiple
from autotune.training_arguments import FINDER, baseline_sizes
from autotune.workload import Workload


@dataclass(frozen=True)
class RuledOut:
    """A lever's value that is never probed, and why."""

    lever: str
    value: Value
    reason: str

    def __str__(self) -> str:
        return f"{self.lever} {self.value}: {self.reason}"


@dataclass(frozen=True)
class SearchSpace:
    """The levers of a search with the values that can be proposed, and the baseline.

    values: lever -> values, the micro-batch sizes first. baseline: the user's own configuration, made exact; its values
    need not be among those to propose (`--only`). baseline_problem: why the baseline cannot run here, or empty.
    elsewhere: lever that is none of the space -> the value that the user's own arguments mean. core: levers that are
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
        """Number of configurations that can be proposed: levers that know nothing of each other multiply."""
        return prod(sum(1 for _ in self._combined(group)) for group in self._groups())

    def configuration(self, values: Mapping[str, Value]) -> Configuration:
        """The configuration of these values, one for each lever of the space.

        A lever that means nothing beside the others has the baseline's value, where that can be proposed: what is one
        and the same training is one configuration. A micro-batch that is not exact on these ranks becomes the next
        smaller one that is, or the smallest.
        """
        micro = self._exact_micro(int(values[MICRO]), int(values.get(RANKS, 1)))
        levers = {name: self._own_value(name, values) for name in self.values if name != MICRO}
        return Configuration.exact(self.global_batch_size, micro, levers)

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
        """Every configuration that can be proposed, the first lever slowest."""
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
        return next((f"{name} {values[name]}: {why}" for name in values if (why := _conflict(name, told))), "")

    def beside(self, name: str) -> tuple[Value, ...]:
        """Every value of a lever, or the numbers of accumulation steps, that this space has or the user's own means."""
        if name == ACCUMULATION:
            micro, ranks = self.values[MICRO], self.beside(RANKS) or (1,)
            steps = (self.global_batch_size // (int(size) * int(several)) for size in micro for several in ranks)
            return tuple(dict.fromkeys(steps))
        return self.values.get(name) or ((self.elsewhere[name],) if name in self.elsewhere else ())

    def _groups(self) -> list[tuple[str, ...]]:
        """The levers of the space, those together that decide or rule out something of each other."""
        groups = [{name} for name in self.values]
        for name in self.values:
            others = {MICRO if other == ACCUMULATION else other for other in LEVERS[name].conflicts}
            others |= {MICRO} if name == RANKS else set()
            tied = {name, self._decided_by(name), *others} & self.values.keys()
            groups = [*(one for one in groups if not one & tied), set().union(*(one for one in groups if one & tied))]
        return [tuple(name for name in self.values if name in one) for one in groups]

    def _combined(self, names: tuple[str, ...]) -> Iterator[dict[str, Value]]:
        """Every combination of the values of these levers that can stand beside each other and is told in one way only."""
        for values in product(*(self.values[name] for name in names)):
            told = dict(zip(names, values, strict=True))
            if not self.conflict(told) and all(self._own_value(name, told) == told[name] for name in names):
                yield told

    def _own_value(self, name: str, values: Mapping[str, Value]) -> Value:
        """The value that this lever has beside the others: its own, or the idle one where it means nothing."""
        decided_by = self._decided_by(name)
        decider = values[decided_by] if decided_by in values else self.elsewhere.get(decided_by)
        return values[name] if _means(name, decider) else self._idle(name)

    def _decided_by(self, name: str) -> str:
        """The lever on which it depends whether this one means anything, or nothing."""
        needs = LEVERS[name].needs
        return needs[0] if needs else ""

    def _idle(self, name: str) -> Value:
        own, values = self.baseline.values[name], self.values[name]
        return own if own in values else values[0]

    def identity(self) -> dict[str, Any]:
        """What makes this space the one it is, as plain data."""
        return {name: list(values) for name, values in self.values.items()} | {"baseline": self.baseline.to_dict()}


def _means(name: str, other: Value | None) -> bool:
    """Whether a lever means anything at this value of the lever that decides it; None: unknown, or nothing decides it."""
    needs = LEVERS[name].needs
    return needs is None or other is None or needs[1](other)


def _conflict(name: str, told: Mapping[str, Value]) -> str | None:
    """Why this lever's value cannot stand beside one of the others that are told; None where it can."""
    reasons = (rule(told[name], told[other]) for other, rule in LEVERS[name].conflicts.items() if other in told)
    return next(filter(None, reasons), None)


def build_space(
    request: TuningRequest, environment: Environment, workload: Workload, base: Mapping[str, Any]
) -> SearchSpace:
    """The space that the request names, narrowed to what this environment and model can do.

    base: the user's own TrainingArguments, as the fields that differ from the defaults. Raises InvalidSpace for a wrong
    file, InvalidRequest for a wrong `--fix` or `--only` and where nothing is left of a lever.
    """
    asked, fixed, chosen = read_wishes(request)
    micro, note = baseline_sizes(request.global_batch_size, base, int(fixed.get(RANKS, 1)))
    finder = (
        f"{FINDER} is left out: it would shrink the batch, and with it the global batch" if base.get(FINDER) else ""
    )
    own: dict[str, Value] = {name: _own(LEVERS[name], base, environment, workload) for name in asked if name != MICRO}
    own = {MICRO: micro, **own, **fixed}
    tile = multiple(environment, _precisions(asked, fixed, chosen, base, environment, workload))
    values: dict[str, tuple[Value, ...]] = {}
    ruled_out: list[RuledOut] = []
    for name in own:
        lever = LEVERS[name]
        if name in fixed:
            wanted = [fixed[name]]
        elif name in chosen:
            wanted = list(chosen[name])
        else:
            wanted = list(dict.fromkeys([*_spread(asked[name], request.global_batch_size, tile), own[name]]))
        reasons = {value: _why_not(lever, value, request.global_batch_size, environment, workload) for value in wanted}
        if request.keep_numerics:
            other = f"learns differently from {own[name]}, which --keep-numerics leaves as it is"
            reasons |= {value: other for value in wanted if not lever.learns_alike(value, own[name])}
        if name == RANKS:
            reasons = {
                value: reason or _never_exact(request, int(value), values[MICRO]) for value, reason in reasons.items()
            }
        ruled_out += [RuledOut(name, value, reason) for value, reason in reasons.items() if reason]
        values[name] = tuple(value for value, reason in reasons.items() if not reason)
        if lever.ordered:
            values[name] = tuple(sorted(values[name]))
        if not values[name]:
            said = "; ".join(f"{value}: {reason}" for value, reason in reasons.items())
            raise InvalidRequest(
                f"Nothing is left to try for {name} ({said}).", "Allow other values with --fix, --only or --space."
            )
    if RANKS in values:
        kept, unshared = _shared(values[MICRO], values[RANKS], request)
        values[MICRO], ruled_out = kept, ruled_out + unshared
    problems = [
        _why_not(LEVERS[name], value, request.global_batch_size, environment, workload) for name, value in own.items()
    ]
    levers = {name: value for name, value in own.items() if name != MICRO}
    differently = tuple(
        name for name in values if not all(LEVERS[name].learns_alike(value, own[name]) for value in values[name])
    )
    made = SearchSpace(
        name=request.space,
        global_batch_size=request.global_batch_size,
        values=values,
        baseline=Configuration.exact(request.global_batch_size, int(own[MICRO]), levers),
        baseline_problem="; ".join(problem for problem in problems if problem),
        ruled_out=tuple(ruled_out),
        notes=tuple(filter(None, (note, finder))),
        learns_differently=differently,
        core=core_levers(request.space),
        elsewhere={name: _own(lever, base, environment, workload) for name, lever in LEVERS.items() if name not in own},
    )
    return _without_conflicts(made)


def _without_conflicts(space: SearchSpace) -> SearchSpace:
    """The space without values that can stand beside none of the others', and with a note on those that can beside some.

    Raises InvalidRequest where nothing is left.
    """
    ruled_out, notes, values = list(space.ruled_out), list(space.notes), dict(space.values)
    for name, known in space.values.items():
        for other, rule in LEVERS[name].conflicts.items():
            beside = space.beside(other)
            for value in known:
                reasons = {one: why for one in beside if (why := rule(value, one))}
                if beside and len(reasons) == len(beside):
                    ruled_out.append(RuledOut(name, value, f"{reasons[beside[0]]} ({other} {_listed(beside)})"))
                    values[name] = tuple(one for one in values[name] if one != value)
                elif reasons:
                    why = next(iter(reasons.values()))
                    notes.append(f"{name} {value} is left out beside {other} {_listed(reasons)}: {why}")
    problem = "; ".join(filter(None, (space.baseline_problem, space.conflict(space.baseline.values))))
    made = replace(space, values=values, ruled_out=tuple(ruled_out), notes=tuple(notes), baseline_problem=problem)
    if not all(values.values()) or next(iter(made), None) is None:
        said = "; ".join(map(str, ruled_out[len(space.ruled_out) :])) or notes[-1]
        raise InvalidRequest(
            f"No values are left that can stand beside each other ({said}).", "Allow other values with --fix or --only."
        )
    return made


def _listed(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values))


def read_wishes(
    request: TuningRequest,
) -> tuple[dict[str, tuple[Any, ...]], dict[str, Value], dict[str, tuple[Value, ...]]]:
    """(lever -> values of the space's file, lever -> `--fix`ed value, lever -> `--only` values), each read.

    Knows no environment, so that wrong words are said before anything is started. Raises InvalidSpace, InvalidRequest.
    """
    asked = dict(read_space(request.space))
    for name in (*request.fix, *request.only):
        asked.setdefault(_known_lever(name).name, ())
    fixed = {name: _read(LEVERS[name], value, "--fix") for name, value in request.fix.items()}
    chosen = {name: tuple(_read(LEVERS[name], v, "--only") for v in vs) for name, vs in request.only.items()}
    return asked, fixed, chosen


def _spread(asked: tuple[Value | dict[str, Any], ...], global_batch_size: int, tile: int) -> Iterator[Value]:
    """The values of a file, its `{multiple_of: k}` opened into divisors. tile: the multiple that suits the device."""
    for one in asked:
        if isinstance(one, dict) and one["multiple_of"] == TILES:
            yield from tiled(global_batch_size, tile)
        elif isinstance(one, dict):
            yield from divisors(global_batch_size, one["multiple_of"])
        else:
            yield one


def _precisions(
    asked: Mapping[str, tuple[Any, ...]],
    fixed: Mapping[str, Value],
    chosen: Mapping[str, tuple[Value, ...]],
    base: Mapping[str, Any],
    environment: Environment,
    workload: Workload,
) -> tuple[Value, ...]:
    """The number formats that can be proposed, or the user's own where the space has none."""
    lever = LEVERS["precision"]
    own = _own(lever, base, environment, workload)
    named = (fixed[lever.name],) if lever.name in fixed else chosen.get(lever.name) or asked.get(lever.name) or (own,)
    return tuple(one for one in named if lever.unavailable(one, environment, workload) is None)


def _why_not(
    lever: Lever, value: Value, global_batch_size: int, environment: Environment, workload: Workload
) -> str | None:
    if lever.name in (MICRO, RANKS) and global_batch_size % int(value):
        return f"does not divide the global batch of {global_batch_size}"
    return lever.unavailable(value, environment, workload)


def _never_exact(request: TuningRequest, ranks: int, sizes: tuple[Value, ...]) -> str | None:
    """Why no micro-batch makes the global batch exact on so many ranks; None where one does."""
    if any(request.global_batch_size % (int(size) * ranks) == 0 for size in sizes):
        return None
    told = ", ".join(map(str, sizes))
    return f"with a micro-batch of {told} it does not divide the global batch of {request.global_batch_size}"


def _shared(
    sizes: tuple[Value, ...], ranks: tuple[Value, ...], request: TuningRequest
) -> tuple[tuple[Value, ...], list[RuledOut]]:
    """The micro-batch sizes that are exact on one of these numbers of ranks at least, and those that are on none."""
    whole = request.global_batch_size
    kept = tuple(size for size in sizes if any(whole % (int(size) * int(one)) == 0 for one in ranks))
    told = " or ".join(map(str, ranks))
    said = f"on {told} ranks it does not divide the global batch of {whole}"
    return kept, [RuledOut(MICRO, size, said) for size in sizes if size not in kept]


def _known_lever(name: str) -> Lever:
    if name not in LEVERS:
        raise InvalidRequest(f"There is no lever {name!r}.", did_you_mean(name, LEVERS))
    return LEVERS[name]


def _own(lever: Lever, base: Mapping[str, Any], environment: Environment, workload: Workload) -> Value:
    try:
        return lever.own(base, environment, workload)
    except ValueError as error:
        raise InvalidRequest(f"Your training arguments: {lever.name}: {error}.", "Mend that field.") from error


def _read(lever: Lever, value: Any, where: str) -> Value:
    try:
        return lever.read(value)
    except ValueError as error:
        raise InvalidRequest(f"{where} {lever.name}={value}: {error}.", did_you_mean(value, lever.values)) from error
