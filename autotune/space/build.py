"""The search space that a request names, narrowed to what device, installation and model can do."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.core.configuration import RANKS, Configuration, Value
from autotune.core.environment import Environment
from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.request import TuningRequest
from autotune.core.workload import Workload
from autotune.space.file import SIZES, TILES, core_settings, read_space
from autotune.space.search_space import RuledOut, SearchSpace
from autotune.space.settings import MICRO, SETTINGS, Setting
from autotune.space.settings.micro_batch_size import divisors, tiled
from autotune.space.setup import FINDER, baseline_sizes
from autotune.space.tensor_cores import multiple


def build_space(
    request: TuningRequest, environment: Environment, workload: Workload, base: Mapping[str, Any]
) -> SearchSpace:
    """The space that the request names, narrowed to what this environment and model can do.

    base: the user's own TrainingArguments, as the fields that differ from the defaults. Raises InvalidSpace for a wrong
    file, InvalidRequest for a wrong `--fix` or `--only` and where nothing is left of a setting.
    """
    asked, fixed, chosen = parse_overrides(request)
    micro, note = baseline_sizes(request.global_batch_size, base, int(fixed.get(RANKS, 1)))
    finder = (
        f"{FINDER} is left out: it would shrink the batch, and with it the global batch" if base.get(FINDER) else ""
    )
    own: dict[str, Value] = {name: _own(SETTINGS[name], base, environment, workload) for name in asked if name != MICRO}
    own = {MICRO: micro, **own, **fixed}
    tile = multiple(environment, _precisions(asked, fixed, chosen, base, environment, workload))
    values: dict[str, tuple[Value, ...]] = {}
    ruled_out: list[RuledOut] = []
    for name in own:
        setting = SETTINGS[name]
        if name in fixed:
            wanted = [fixed[name]]
        elif name in chosen:
            wanted = list(dict.fromkeys(_spread(chosen[name], request.global_batch_size, tile)))
        else:
            wanted = list(dict.fromkeys([*_spread(asked[name], request.global_batch_size, tile), own[name]]))
        reasons = {
            value: _why_not(setting, value, request.global_batch_size, environment, workload) for value in wanted
        }
        if request.keep_numerics:
            other = f"learns differently from {own[name]}, which --keep-numerics leaves as it is"
            reasons |= {value: other for value in wanted if not setting.learns_alike(value, own[name])}
        if name == RANKS:
            reasons = {
                value: reason or _never_exact(request, int(value), values[MICRO]) for value, reason in reasons.items()
            }
        ruled_out += [RuledOut(name, value, reason) for value, reason in reasons.items() if reason]
        values[name] = tuple(value for value, reason in reasons.items() if not reason)
        if setting.ordered:
            values[name] = tuple(sorted(values[name]))
        if not values[name]:
            said = "; ".join(f"{value}: {reason}" for value, reason in reasons.items())
            raise InvalidRequest(
                f"Nothing is left to try for {name} ({said}).",
                "Allow other values with --fix, --only or --search-space.",
            )
    if RANKS in values:
        kept, unshared = _shared(values[MICRO], values[RANKS], request)
        values[MICRO], ruled_out = kept, ruled_out + unshared
    problems = [
        _why_not(SETTINGS[name], value, request.global_batch_size, environment, workload) for name, value in own.items()
    ]
    settings = {name: value for name, value in own.items() if name != MICRO}
    differently = tuple(
        name for name in values if not all(SETTINGS[name].learns_alike(value, own[name]) for value in values[name])
    )
    made = SearchSpace(
        name=request.space,
        global_batch_size=request.global_batch_size,
        values=values,
        baseline=Configuration.exact(request.global_batch_size, int(own[MICRO]), settings),
        baseline_problem="; ".join(problem for problem in problems if problem),
        ruled_out=tuple(ruled_out),
        notes=tuple(filter(None, (note, finder))),
        learns_differently=differently,
        core=core_settings(request.space),
        elsewhere={
            name: _own(setting, base, environment, workload) for name, setting in SETTINGS.items() if name not in own
        },
    )
    return _without_conflicts(made)


def _without_conflicts(space: SearchSpace) -> SearchSpace:
    """The space without values that can stand beside none of the others', and with a note on those that can beside some.

    Raises InvalidRequest where nothing is left.
    """
    ruled_out, notes, values = list(space.ruled_out), list(space.notes), dict(space.values)
    for name, known in space.values.items():
        for other, rule in SETTINGS[name].forbidden.items():
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
    if not all(values.values()) or not made.is_possible():
        said = "; ".join(map(str, ruled_out[len(space.ruled_out) :])) or notes[-1]
        raise InvalidRequest(
            f"No valid combination of values is left ({said}).", "Allow other values with --fix or --only."
        )
    return made


def _listed(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values))


def parse_overrides(
    request: TuningRequest,
) -> tuple[dict[str, tuple[Any, ...]], dict[str, Value], dict[str, tuple[Any, ...]]]:
    """(setting -> values of the space's file, setting -> `--fix`ed value, setting -> `--only` values), each read;
    of micro-batch sizes words too, as `read_space` leaves them.

    Knows no environment, so that wrong words are said before anything is started. Raises InvalidSpace, InvalidRequest.
    """
    asked = dict(read_space(request.space))
    for name in (*request.fix, *request.only):
        asked.setdefault(_known_setting(name).name, ())
    fixed = {name: _read(SETTINGS[name], value, "--fix") for name, value in request.fix.items()}
    chosen = {name: tuple(_choice(SETTINGS[name], value) for value in values) for name, values in request.only.items()}
    return asked, fixed, chosen


def _choice(setting: Setting, value: Any) -> Any:
    words = SIZES if setting.name == MICRO else {}
    return words[str(value)] if str(value) in words else _read(setting, value, "--only", words)


def _spread(asked: tuple[Value | dict[str, Any], ...], global_batch_size: int, tile: int) -> Iterator[Value]:
    """The values of a file or an option, `{multiple_of: k}` opened into divisors. tile: the multiple that suits the device."""
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
    chosen: Mapping[str, tuple[Any, ...]],
    base: Mapping[str, Any],
    environment: Environment,
    workload: Workload,
) -> tuple[Value, ...]:
    """The number formats that can be proposed, or the user's own where the space has none."""
    setting = SETTINGS["precision"]
    own = _own(setting, base, environment, workload)
    named = (
        (fixed[setting.name],)
        if setting.name in fixed
        else chosen.get(setting.name) or asked.get(setting.name) or (own,)
    )
    return tuple(one for one in named if setting.unavailable(one, environment, workload) is None)


def _why_not(
    setting: Setting, value: Value, global_batch_size: int, environment: Environment, workload: Workload
) -> str | None:
    if setting.name in (MICRO, RANKS) and global_batch_size % int(value):
        return f"does not divide the global batch of {global_batch_size}"
    return setting.unavailable(value, environment, workload)


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


def _known_setting(name: str) -> Setting:
    if name not in SETTINGS:
        raise InvalidRequest(f"There is no setting {name!r}.", did_you_mean(name, SETTINGS))
    return SETTINGS[name]


def _own(setting: Setting, base: Mapping[str, Any], environment: Environment, workload: Workload) -> Value:
    try:
        return setting.from_user(base, environment, workload)
    except ValueError as error:
        raise InvalidRequest(f"Your training arguments: {setting.name}: {error}.", "Mend that field.") from error


def _read(setting: Setting, value: Any, where: str, words: Iterable[str] = ()) -> Value:
    try:
        return setting.read(value)
    except ValueError as error:
        known = [*setting.values, *words]
        raise InvalidRequest(f"{where} {setting.name}={value}: {error}.", did_you_mean(value, known)) from error
