"""The answer of a study in the words of what the user runs: their command, their config file, or Python."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.commands.apply.command_line import Command
from autotune.commands.apply.config_file import patched, read_config, read_file
from autotune.commands.apply.tools import BY_HAND, PARSER, TRL, Changes, changes, tool_of
from autotune.core import InvalidRequest
from autotune.core.paths import shown
from autotune.report.exports import Answer, answer_of
from autotune.report.files import write_file
from autotune.report.markdown import wrapped
from autotune.report.snippets import AS_JSON, baseline_setup, setup_changes, snippets
from autotune.space.launch import launch_line
from autotune.space.setup import BATCH_FIELDS
from autotune.study.result import SearchResult


@dataclass(frozen=True)
class Applied:
    """The answer in the user's words. files: copy of a config file -> its text. by_hand: what these words cannot say.

    is_kept: the answer is the user's own settings, so the words are as they were.
    """

    command: str = ""  # for the shell
    python: str = ""
    files: Mapping[Path, str] = field(default_factory=dict)
    values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # key -> (what the user has, the answer's)
    by_hand: tuple[str, ...] = ()
    is_kept: bool = False

    def write(self) -> None:
        """Write the copies. Raises StorageFailed."""
        for path, text in self.files.items():
            write_file(path, text)

    @property
    def lines(self) -> list[str]:
        """Lines for a terminal."""
        if self.is_kept:
            return ["Your settings stay as they are: nothing to change."]
        width = max(map(len, self.values), default=0)
        rows = [f"  {key:<{width}}  {_shown(was)} -> {_shown(now)}" for key, (was, now) in self.values.items()]
        by_hand = [part for line in self.by_hand for part in wrapped(line, "  ", "    ")]
        parts = [*self.python.splitlines(), *(f"Written: {shown(path)}" for path in self.files), *rows]
        parts += ["", self.command] if self.command else []
        return [*parts, *(["", "By hand, as no key or flag says it:", *by_hand] if by_hand else [])]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints."""
        return {
            "command": self.command or None,
            "python": self.python or None,
            "files": [str(path) for path in self.files],
            "values": {key: list(pair) for key, pair in self.values.items()},
            "by_hand": list(self.by_hand),
        }


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def in_file(result: SearchResult, file: str | Path) -> Applied:
    """The answer in a copy of this config file, `NAME.tuned.yaml`; of a Python file the lines to paste.

    Raises InvalidRequest for a file that cannot be read, of no known tool, or that cannot be edited key by key, and what
    `SearchResult.best` raises if there is no answer.
    """
    path, answer = Path(file), _answer(result)
    if path.suffix == ".py":
        read_file(path)
        return Applied(python=snippets(result)[0].text) if answer else Applied(is_kept=True)
    current = read_config(path)[1]
    tool = tool_of(current, result.environment.training_argument_fields)
    if answer is None:
        return Applied(is_kept=True)
    if tool in BY_HAND:
        pairs = setup_changes(result).items()
        return Applied(by_hand=tuple(f"{name}: {_shown(was)} -> {_shown(now)}" for name, (was, now) in pairs))
    changed = changes(result, tool, current)
    ranks, variables = result.best_setup.processes, _variables(result)
    start = [f"start it with {launch_line(ranks, variables)}"] if variables or _ranks_change(result) else []
    return replace(_of_file(path, changed, current), by_hand=(*changed.by_hand, *start))


def in_command(
    result: SearchResult, words: Sequence[str], folder: str | Path = "", reads_flags: bool = True
) -> Applied:
    """The answer in this command, run in this folder: its flags and its launcher's, and a copy of its config file.

    A value that the command gives as a flag is changed there, all others in the config file, if there is one. reads_flags: a
    script makes its arguments of flags that it is not given, too. Raises as `in_file`.
    """
    command = Command.read(words)
    answer, flags = _answer(result), command.values()
    path, in_config, tool = _config(command, Path(folder), result.environment.training_argument_fields)
    if answer is None or not command.words:
        return Applied(command.text, is_kept=True)
    current = {**in_config, **flags}
    changed = changes(result, tool, current)
    by_hand = [*changed.by_hand, *_other_files(result, command, current)]
    of_file = {key: value for key, value in changed.values.items() if path is not None and key not in flags}
    of_flags = {key: value for key, value in changed.values.items() if key not in of_file}
    are_read = reads_flags or tool != PARSER
    for key in [
        key for key, value in of_flags.items() if not _is_flag(key, value, tool) or not (are_read or key in flags)
    ]:
        by_hand.append(f"{key} = {of_flags.pop(key)}")
    if of_flags and command.hides_flags:
        by_hand.append(f"add to the Python command that it starts: {Command((), {}).with_flags(of_flags).text}")
        of_flags = {}
    command = command.with_flags(of_flags, [key for key in changed.removed if key in flags])
    applied = Applied()
    if path is not None:
        removed = tuple(key for key in changed.removed if key in in_config)
        applied = _of_file(path, Changes(of_file, removed), current)
        for copy in applied.files:
            command = command.with_config(copy.name)
    if _ranks_change(result):
        by_hand.append(f"start {answer.ranks} processes, one a device")
    gone = baseline_setup(result).variables.keys() - result.best_setup.variables.keys()
    kept = {name: value for name, value in command.variables.items() if name not in gone}
    command = replace(command, variables=kept | _variables(result))
    values = {**applied.values, **{key: (flags.get(key), value) for key, value in of_flags.items()}}
    return Applied(command.text, "", applied.files, values, tuple(by_hand))


def _answer(result: SearchResult) -> Answer | None:
    """The answer; None if it is the user's own settings. Raises as `SearchResult.best` if there is none."""
    result.best  # noqa: B018
    return answer_of(result)


def _other_files(result: SearchResult, command: Command, current: Mapping[str, Any]) -> list[str]:
    """Changes to make in the launcher's flags, and in accelerate's and DeepSpeed's own files that the command names."""
    now, was = (side.training_arguments for side in (result.best_setup, baseline_setup(result)))
    lines, launcher = [], command.flags(0, command.start)
    precision = next((name for name in ("bf16", "fp16") if now.get(name)), "no")
    if flags := launcher.get("mixed_precision", []):
        lines.append(f"{flags[-1].prefix} {precision}")
    files = launcher.get("config_file", [])
    if files and (_ranks_change(result) or any(now.get(name) != was.get(name) for name in ("bf16", "fp16"))):
        ranks = result.best_setup.processes
        lines.append(f"{files[-1].values[0]}: num_processes: {ranks}, mixed_precision: {precision}")
    file = current.get("deepspeed")
    if isinstance(file, str) and any(now.get(name) != was.get(name) for name in BATCH_FIELDS):
        micro, accumulation = (now.get(name) for name in BATCH_FIELDS)
        sizes = f"train_micro_batch_size_per_gpu: {micro}, gradient_accumulation_steps: {accumulation}"
        lines.append(f"{file}: {sizes}, unless they are auto")
    return lines


def _config(command: Command, folder: Path, fields: Collection[str]) -> tuple[Path | None, dict[str, Any], str]:
    """(config file of the command or None, its keys, the tool that reads it); a script's own file of another kind is none."""
    if (index := command.config) is None:
        return None, {}, command.tool
    path = folder / command.words[index]
    if command.tool != PARSER:
        return path, read_config(path)[1], command.tool
    with contextlib.suppress(InvalidRequest):
        keys = read_config(path)[1]
        if (tool := tool_of(keys, fields)) not in BY_HAND:
            return path, keys, tool
    return None, {}, PARSER


def _of_file(path: Path, changed: Changes, current: Mapping[str, Any]) -> Applied:
    if not changed.values and not changed.removed:
        return Applied()
    copy = path.with_name(f"{path.stem}.tuned{path.suffix}")
    now = changed.values | dict.fromkeys(changed.removed)
    text = patched(path, changed.values, changed.removed)
    return Applied(files={copy: text}, values={key: (current.get(key), now[key]) for key in now})


def _is_flag(key: str, value: Any, tool: str) -> bool:
    """True if a flag can set it."""
    return not isinstance(value, dict | list) or key in AS_JSON or (isinstance(value, list) and tool == TRL)


def _variables(result: SearchResult) -> dict[str, str]:
    """Environment variables that the answer sets and the user's settings do not."""
    before = baseline_setup(result).variables
    return {name: value for name, value in result.best_setup.variables.items() if before.get(name) != value}


def _ranks_change(result: SearchResult) -> bool:
    return baseline_setup(result).processes != result.best_setup.processes
