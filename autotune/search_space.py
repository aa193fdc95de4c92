"""YAML -> SearchSpace: levers and their values, and what is ruled out here and why."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.configuration import Configuration, Value
from autotune.environment import Environment
from autotune.errors import InvalidRequest, InvalidSpace, did_you_mean
from autotune.levers import LEVERS, Lever
from autotune.levers.micro_batch_size import divisors
from autotune.request import TuningRequest
from autotune.training_arguments import FINDER, baseline_sizes
from autotune.workload import Workload

MICRO = "micro_batch_size"


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
    """

    name: str
    global_batch_size: int
    values: Mapping[str, tuple[Value, ...]]
    baseline: Configuration
    baseline_problem: str = ""
    ruled_out: tuple[RuledOut, ...] = ()
    notes: tuple[str, ...] = ()
    learns_differently: tuple[str, ...] = field(default_factory=tuple)

    @property
    def size(self) -> int:
        """Number of configurations that can be proposed."""
        return prod(len(values) for values in self.values.values())

    def configuration(self, values: Mapping[str, Value]) -> Configuration:
        """The configuration of these values, one for each lever of the space."""
        levers = {name: values[name] for name in self.values if name != MICRO}
        return Configuration.exact(self.global_batch_size, int(values[MICRO]), levers)

    def __contains__(self, configuration: Configuration) -> bool:
        values = configuration.values
        return values.keys() == self.values.keys() and all(values[name] in known for name, known in self.values.items())

    def __iter__(self) -> Iterator[Configuration]:
        """Every configuration that can be proposed, the first lever slowest."""
        for values in product(*self.values.values()):
            yield self.configuration(dict(zip(self.values, values, strict=True)))

    def identity(self) -> dict[str, Any]:
        """What makes this space the one it is, as plain data."""
        return {name: list(values) for name, values in self.values.items()} | {"baseline": self.baseline.to_dict()}


def build_space(
    request: TuningRequest, environment: Environment, workload: Workload, base: Mapping[str, Any]
) -> SearchSpace:
    """The space that the request names, narrowed to what this environment and model can do.

    base: the user's own TrainingArguments, as the fields that differ from the defaults. Raises InvalidSpace for a wrong
    file, InvalidRequest for a wrong `--fix` or `--only` and where nothing is left of a lever.
    """
    asked, fixed, chosen = read_wishes(request)
    micro, note = baseline_sizes(request.global_batch_size, base)
    finder = (
        f"{FINDER} is left out: it would shrink the batch, and with it the global batch" if base.get(FINDER) else ""
    )
    own: dict[str, Value] = {name: _own(LEVERS[name], base, environment) for name in asked if name != MICRO}
    own = {MICRO: micro, **own, **fixed}
    values, ruled_out = {}, []
    for name in own:
        lever = LEVERS[name]
        if name in fixed:
            wanted = [fixed[name]]
        elif name in chosen:
            wanted = list(chosen[name])
        else:
            wanted = list(dict.fromkeys([*_spread(asked[name], request.global_batch_size), own[name]]))
        reasons = {value: _why_not(lever, value, request.global_batch_size, environment, workload) for value in wanted}
        ruled_out += [RuledOut(name, value, reason) for value, reason in reasons.items() if reason]
        values[name] = tuple(value for value, reason in reasons.items() if not reason)
        if lever.ordered:
            values[name] = tuple(sorted(values[name]))
        if not values[name]:
            said = "; ".join(f"{value}: {reason}" for value, reason in reasons.items())
            raise InvalidRequest(
                f"Nothing is left to try for {name} ({said}).", "Allow other values with --fix, --only or --space."
            )
    problems = [
        _why_not(LEVERS[name], value, request.global_batch_size, environment, workload) for name, value in own.items()
    ]
    levers = {name: value for name, value in own.items() if name != MICRO}
    return SearchSpace(
        name=request.space,
        global_batch_size=request.global_batch_size,
        values=values,
        baseline=Configuration.exact(request.global_batch_size, int(own[MICRO]), levers),
        baseline_problem="; ".join(problem for problem in problems if problem),
        ruled_out=tuple(ruled_out),
        notes=tuple(filter(None, (note, finder))),
        learns_differently=tuple(
            name for name in values if "numerics" in LEVERS[name].changes and len(values[name]) > 1
        ),
    )


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


def _spread(asked: tuple[Value | dict[str, Any], ...], global_batch_size: int) -> Iterator[Value]:
    """The values of a file, its `{multiple_of: k}` opened into divisors."""
    for one in asked:
        if isinstance(one, dict):
            yield from divisors(global_batch_size, one["multiple_of"])
        else:
            yield one


def _why_not(
    lever: Lever, value: Value, global_batch_size: int, environment: Environment, workload: Workload
) -> str | None:
    if lever.name == MICRO and global_batch_size % int(value):
        return f"does not divide the global batch of {global_batch_size}"
    return lever.unavailable(value, environment, workload)


def _known_lever(name: str) -> Lever:
    if name not in LEVERS:
        raise InvalidRequest(f"There is no lever {name!r}.", did_you_mean(name, LEVERS))
    return LEVERS[name]


def _own(lever: Lever, base: Mapping[str, Any], environment: Environment) -> Value:
    try:
        return lever.own(base, environment)
    except ValueError as error:
        raise InvalidRequest(f"Your training arguments: {lever.name}: {error}.", "Mend that field.") from error


def _read(lever: Lever, value: Any, where: str) -> Value:
    try:
        return lever.read(value)
    except ValueError as error:
        raise InvalidRequest(f"{where} {lever.name}={value}: {error}.", did_you_mean(value, lever.values)) from error


# The files ------------------------------------------------------------------------------------------------------


class _SpaceFile(BaseModel):
    """The shape of a search-space file."""

    model_config = ConfigDict(extra="forbid")

    description: str = ""
    parameters: dict[str, list[str | int | float | bool] | str | int | bool | dict[str, int]]


class _Yaml12(yaml.SafeLoader):
    """YAML 1.2's core schema: only true and false are booleans, 5e-5 is a number, `off` and `no` are words."""


_Yaml12.yaml_implicit_resolvers = {
    letter: [(tag, rule) for tag, rule in rules if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml12.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|false|True|False|TRUE|FALSE)$"), list("tTfF")
)
_Yaml12.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


def read_yaml(text: str) -> Any:
    """Plain data, by YAML 1.2's core schema; raises yaml.YAMLError."""
    return yaml.load(text, _Yaml12)  # a SafeLoader


def spaces_folder() -> Path:
    """Where the shipped spaces are: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    inside = package / "search_spaces"
    return inside if inside.is_dir() else package.parent / "search_spaces"


def named_spaces() -> dict[str, Path]:
    """Every shipped space by name."""
    return {path.stem: path for path in sorted(spaces_folder().glob("*.yaml"))}


def describe_space(path: Path) -> str:
    """The one-line description of a space file."""
    return _open_space(path)[0].description


def read_space(name_or_path: str) -> dict[str, tuple[Any, ...]]:
    """lever -> values of a shipped space's name or a file's path.

    Raises InvalidSpace naming file, line and the nearest right word.
    """
    known = named_spaces()
    path = known.get(name_or_path) or Path(name_or_path)
    if not os.path.isfile(path):  # Path.is_file raises where a name is too long
        raise InvalidSpace(f"There is no search space {name_or_path!r}.", did_you_mean(name_or_path, known))
    file, lines = _open_space(path)
    space: dict[str, tuple[Any, ...]] = {}
    for name, given in file.parameters.items():
        where = f"{path}:{lines.get(name, 1)}"
        lever = LEVERS.get(name.replace("-", "_"))
        if lever is None:
            raise InvalidSpace(f"{where}: there is no lever {name!r}.", did_you_mean(name, LEVERS))
        space[lever.name] = tuple(_value(lever, value, where) for value in _several(lever, given))
        if not space[lever.name]:
            raise InvalidSpace(f"{where}: {name} has no values.", "List at least one, or take the line out.")
    if not space:
        raise InvalidSpace(f"{path}: no parameters.", f"List some of {', '.join(LEVERS)}.")
    return {MICRO: space.pop(MICRO, ({"multiple_of": 1},)), **space}


def _several(lever: Lever, given: Any) -> list[Any]:
    if lever.name == MICRO and given == "divisors":
        return [{"multiple_of": 1}]
    return given if isinstance(given, list) else [given]


def _value(lever: Lever, value: Any, where: str) -> Any:
    if isinstance(value, dict):
        if lever.name == MICRO and list(value) == ["multiple_of"] and value["multiple_of"] >= 1:
            return value
        raise InvalidSpace(
            f"{where}: {value} is no value of {lever.name}.", "Write {multiple_of: 8} or a list of sizes."
        )
    try:
        return lever.read(value)
    except ValueError as error:
        raise InvalidSpace(f"{where}: {lever.name}: {error}.", did_you_mean(value, lever.values)) from error


_SHAPE = "Write `parameters:` and below it a line for each lever, as `  precision: [fp32, bf16]`."


def _open_space(path: Path) -> tuple[_SpaceFile, dict[str, int]]:
    """The file's content, and the line of each lever and top-level key."""
    try:
        loader = _Yaml12(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpace(f"{path} cannot be read: {error}.", "Name a YAML file.") from error
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        said = problem or getattr(error, "reason", "unreadable")
        line = mark.line + 1 if mark else 1
        raise InvalidSpace(f"{path}:{line}: no valid YAML: {said}.", "Mind indentation and brackets.") from error
    lines: dict[str, int] = {}
    for key, line in _lines(node):
        if key in lines:
            raise InvalidSpace(f"{path}:{line}: {key} stands here and in line {lines[key]}.", "Keep one of them.")
        lines[key] = line
    try:
        return _SpaceFile.model_validate(data), lines
    except ValidationError as error:
        unknown = next((one for one in error.errors() if one["type"] == "extra_forbidden"), None)
        first = unknown or error.errors()[0]
        place = [str(part) for part in first["loc"]]
        line = next((lines[part] for part in reversed(place[:2]) if part in lines), 1)
        advice = did_you_mean(place[0], _SpaceFile.model_fields) if unknown else _SHAPE
        what = "there is no such section" if unknown else first["msg"]
        raise InvalidSpace(f"{path}:{line}: {'.'.join(place[:2]) or 'file'}: {what}.", advice) from error


def _lines(node: yaml.Node | None, depth: int = 2) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode) and depth:
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1
            yield from _lines(value, depth - 1)
