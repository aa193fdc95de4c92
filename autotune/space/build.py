"""The search space of a request, narrowed to what device, installation and model support."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from autotune.core import Configuration, Environment, InvalidRequest, TuningRequest, Value, Workload
from autotune.core.configuration import RANKS
from autotune.core.errors import did_you_mean
from autotune.core.note import Note, NoteKind
from autotune.space.file import SIZES, TILES, open_space
from autotune.space.search_space import RuledOut, SearchSpace
from autotune.space.settings import MICRO, SETTINGS, Context, Setting
from autotune.space.settings.checkpointing import SETTING as CHECKPOINTING
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.fsdp import SETTING as SHARDING
from autotune.space.settings.micro_batch_size import divisors, steps_of, tiled
from autotune.space.settings.precision import FROZEN, WEIGHTS
from autotune.space.setup import FINDER, baseline_sizes
from autotune.space.tensor_cores import multiple


class Overrides(NamedTuple):
    """Setting -> values of the search space's file, its `--fix`ed value, its `--only` values.

    Of micro-batch sizes words too, as `open_space` leaves them.
    """

    space: dict[str, tuple[Any, ...]]
    fixed: dict[str, Value]
    only: dict[str, tuple[Any, ...]]

    def requested(self, name: str) -> tuple[Any, ...]:
        """The values of a setting that are to be tried; none if the request names none."""
        return (self.fixed[name],) if name in self.fixed else self.only.get(name) or self.space.get(name, ())


def parse_overrides(request: TuningRequest) -> Overrides:
    """Settings in the request, checked before anything is started. Raises InvalidSpace, InvalidRequest."""
    space = open_space(request.space).values
    fixed = {name: read_override("fix", name, (value,))[0] for name, value in request.fix.items()}
    only = {name: read_override("only", name, values) for name, values in request.only.items()}
    return Overrides(dict.fromkeys((*fixed, *only), ()) | space, fixed, only)


def check_overrides(request: TuningRequest) -> None:
    """Check what the request says of settings, and that the user's own sizes make its global batch.

    Raises InvalidSpace, InvalidRequest.
    """
    ranks = int(parse_overrides(request).fixed.get(RANKS, 1))
    baseline_sizes(request.global_batch_size, request.training_args, ranks)


def read_override(option: str, name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """The values that the option `fix` or `only` gives to a setting. Raises InvalidRequest for a wrong name or value."""
    if name not in SETTINGS:
        raise InvalidRequest(f"There is no setting {name!r}.", did_you_mean(name, SETTINGS), option)
    words = SIZES if name == MICRO and option == "only" else {}
    return tuple(
        words[str(value)] if str(value) in words else _read(SETTINGS[name], value, option, words) for value in values
    )


def build_space(
    request: TuningRequest, environment: Environment, workload: Workload, base: Mapping[str, Any]
) -> SearchSpace:
    """The space that the request names, narrowed to what this environment and model can do.

    base: the user's own TrainingArguments, as the fields that differ from the defaults. Raises InvalidSpace for a wrong
    file, InvalidRequest for a wrong `--fix` or `--only` and if nothing is left of a setting.
    """
    overrides, context = parse_overrides(request), Context(environment, workload, base)
    total = request.global_batch_size
    micro, notes = baseline_sizes(total, base, int(overrides.fixed.get(RANKS, 1)))
    user = {name: _from_user(setting, context) for name, setting in SETTINGS.items() if name != MICRO}
    user_values: dict[str, Value] = {MICRO: micro, **user}
    baseline = {name: overrides.fixed.get(name, user_values[name]) for name in (MICRO, *overrides.space)}
    if SHARDING.name in baseline and SHARDING.name not in overrides.fixed and baseline.get(RANKS) == 1:
        baseline[SHARDING.name] = "none"  # there is nothing to shard between, and the Trainer refuses to
    precisions = overrides.requested("precision") or (user["precision"],)
    able = [value for value in precisions if _exclusion(SETTINGS["precision"], value, total, context) is None]
    tile = multiple(environment, able)
    context = replace(context, weight_bytes=2 if {WEIGHTS, FROZEN} & {*able} else 4)
    values: dict[str, tuple[Value, ...]] = {}
    ruled_out: list[RuledOut] = []
    for name in baseline:
        requested = [*_spread(overrides.requested(name), total, tile)]
        if name not in overrides.fixed and name not in overrides.only:
            requested.append(baseline[name])
        reasons = {value: _exclusion(SETTINGS[name], value, total, context) for value in requested}
        if request.keep_numerics:
            differs = Exclusion(ExclusionKind.NUMERICS, detail=str(baseline[name]))
            reasons |= {value: differs for value in reasons if not SETTINGS[name].learns_alike(value, baseline[name])}
        if name == MICRO:
            on_ranks = int(baseline.get(RANKS, 1))
            reasons = {
                value: _other_steps(context, total, value, micro, on_ranks) or why for value, why in reasons.items()
            }
        if name == RANKS:
            inexact = _inexact(total, f" with a micro-batch of {_listed(values[MICRO])}")
            for ranks in [value for value, reason in reasons.items() if not reason]:
                if all(total % (int(size) * int(ranks)) for size in values[MICRO]):
                    reasons[ranks] = inexact
        ruled_out += [RuledOut(name, value, reason) for value, reason in reasons.items() if reason]
        remaining = [value for value, reason in reasons.items() if not reason]
        if not remaining:
            listed = "; ".join(f"{value}: {reason}" for value, reason in reasons.items())
            raise InvalidRequest(
                f"Nothing is left to try for {name} ({listed}).",
                "Allow other values with --fix, --only or --search-space.",
            )
        values[name] = tuple(sorted(remaining) if SETTINGS[name].ordered else remaining)
    if RANKS in values:
        exact = [size for size in values[MICRO] if any(total % (int(size) * int(n)) == 0 for n in values[RANKS])]
        inexact = _inexact(total, f" on {' or '.join(map(str, values[RANKS]))} ranks")
        ruled_out += [RuledOut(MICRO, size, inexact) for size in values[MICRO] if size not in exact]
        values[MICRO] = tuple(exact)
    problems = (_exclusion(SETTINGS[name], value, total, context) for name, value in baseline.items())
    space = SearchSpace(
        name=request.space,
        global_batch_size=total,
        values=values,
        baseline=Configuration.exact(
            total, int(baseline[MICRO]), {name: value for name, value in baseline.items() if name != MICRO}
        ),
        baseline_problem="; ".join(str(problem) for problem in problems if problem),
        ruled_out=tuple(ruled_out),
        notes=(*notes, *([Note(NoteKind.BATCH_FINDER, detail=FINDER)] if base.get(FINDER) else [])),
        learns_differently=tuple(
            name
            for name in values
            if not all(SETTINGS[name].learns_alike(value, baseline[name]) for value in values[name])
        ),
        core=open_space(request.space).core,
        fixed_by_user={name: value for name, value in user.items() if name not in baseline},
        device_rules={
            name: rules for name, setting in SETTINGS.items() if (rules := setting.forbidden_on(environment))
        },
    )
    return _without_conflicts(space)


def _without_conflicts(space: SearchSpace) -> SearchSpace:
    """The space without values that cannot be combined with any of another setting.

    A note names those that can be combined with some. Raises InvalidRequest if nothing is left.
    """
    conflicts, notes, values = list[RuledOut](), list(space.notes), dict(space.values)
    for name in space.values:
        for other, rule in space.rules(name).items():
            others = space.possible_values(other)
            for value in space.values[name]:
                reasons = {other_value: reason for other_value in others if (reason := rule(value, other_value))}
                if not reasons:
                    continue
                reason = next(iter(reasons.values()))
                if len(reasons) == len(others):
                    reason = replace(reason, detail=f"{reason.detail} ({other} {_listed(others)})")
                    conflicts.append(RuledOut(name, value, reason))
                    values[name] = tuple(remaining for remaining in values[name] if remaining != value)
                else:
                    text = f"{name} {value} with {other} {_listed(reasons)}: {reason}"
                    notes.append(Note(NoteKind.NOT_COMBINED, detail=text))
    problems = filter(None, (space.baseline_problem, space.conflict(space.baseline.values)))
    narrowed = replace(
        space,
        values=values,
        ruled_out=(*space.ruled_out, *conflicts),
        notes=tuple(notes),
        baseline_problem="; ".join(problems),
    )
    if not all(values.values()) or not narrowed.size:
        raise InvalidRequest(
            f"No valid combination of values is left ({'; '.join(map(str, conflicts)) or notes[-1]}).",
            "Allow other values with --fix or --only.",
        )
    return narrowed


def _listed(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values))


def _spread(requested: Iterable[Value | dict[str, Any]], global_batch_size: int, tile: int) -> Iterator[Value]:
    """The values of a file or an option, `{multiple_of: k}` as divisors. tile: the multiple that suits the device."""
    for value in requested:
        if not isinstance(value, dict):
            yield value
        elif value["multiple_of"] == TILES:
            yield from tiled(global_batch_size, tile)
        else:
            yield from divisors(global_batch_size, value["multiple_of"])


def _exclusion(setting: Setting, value: Value, global_batch_size: int, context: Context) -> Exclusion | None:
    if setting.name in (MICRO, RANKS) and global_batch_size % int(value):
        return _inexact(global_batch_size)
    return _out_of_reach(setting, value, context) or setting.unavailable(value, context)


def _out_of_reach(setting: Setting, value: Value, context: Context) -> Exclusion | None:
    """Reason why a model or a Trainer that the user's code makes cannot be given this value: no training argument says it."""
    workload, user = context.workload, _from_user(setting, context)
    if not workload.user_objects or value == user:
        return None
    effect, usual = (setting.apply(each, context.environment) for each in (value, user))
    is_set = (
        effect.model_arguments.items() <= {"dtype": workload.weights_dtype, **usual.model_arguments}.items()
        and effect.adapter.items() <= usual.adapter.items()
        and (not workload.built or effect.data_arguments.items() <= usual.data_arguments.items())
    )
    if workload.built and setting is CHECKPOINTING and workload.checkpointing and value == "none":
        is_set = False  # it was switched on by hand
    return None if is_set else Exclusion(ExclusionKind.USER_CODE, detail=setting.name)


def _other_steps(context: Context, total: int, size: Value, own: int, ranks: int) -> Exclusion | None:
    """Exclusion of a size with which the user's epochs have other optimizer steps: each leaves out other samples at its end."""
    base, samples = context.arguments, context.workload.samples
    if not base.get("dataloader_drop_last") or base.get("max_steps", -1) > 0 or not samples or total % int(size):
        return None

    steps, steps_of_own = (
        float(steps_of(base.get("num_train_epochs", 3), samples // micro // ranks, total // (micro * ranks)))
        for micro in (int(size), own)
    )
    figures = {"steps": steps, "own": steps_of_own}
    return Exclusion(ExclusionKind.STEPS, figures) if figures["steps"] != figures["own"] else None


def _inexact(global_batch_size: int, with_what: str = "") -> Exclusion:
    return Exclusion(ExclusionKind.NOT_EXACT, {"global_batch_size": global_batch_size}, with_what)


def _from_user(setting: Setting, context: Context) -> Value:
    try:
        return setting.from_user(context)
    except ValueError as error:
        raise InvalidRequest(f"Your training arguments: {setting.name}: {error}.", "Fix that field.") from error


def _read(setting: Setting, value: Any, option: str, words: Iterable[str]) -> Value:
    try:
        return setting.read(value)
    except ValueError as error:
        raise InvalidRequest(
            f"{option} {setting.name}={value}: {error}.", did_you_mean(value, [*setting.values, *words])
        ) from error
