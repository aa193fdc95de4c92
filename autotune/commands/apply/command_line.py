"""A command that trains: its launcher, its flags and its config file, and the same with other values."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.commands.apply.tools import AXOLOTL, LLAMA_FACTORY, PARSER, TRL

PROGRAMS = {"trl": TRL, "axolotl": AXOLOTL, "llamafactory-cli": LLAMA_FACTORY, "llamafactory": LLAMA_FACTORY}
"""Console scripts and packages -> the tool."""

LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start another program, and train nothing themselves."""

SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "make")
"""Programs that start others by what is written elsewhere, or in one word."""

MODULE = ("-m", "--module")

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_FLAG = re.compile(r"-(?![\d.])")


@dataclass(frozen=True)
class Flag:
    """words[begin:end] of a command: a flag with its values."""

    begin: int
    end: int
    prefix: str  # as it is written: `--per_device_train_batch_size`; of `key=value` the key
    values: tuple[str, ...]
    is_joined: bool  # by `=`

    @property
    def key(self) -> str:
        return self.prefix.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Command:
    """The words of a command. variables: set in front of it, as the shell or `env` does."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    env: str = ""  # `env`, if the command begins with it

    @classmethod
    def read(cls, words: Sequence[str]) -> "Command":
        has_options = _FLAG.match("".join(words[1:2]))
        env, *rest = words if words[:1] == ["env"] and not has_options else ("", *words)
        count = next((index for index, word in enumerate(rest) if not _ASSIGNMENT.fullmatch(word)), len(rest))
        return cls(tuple(rest[count:]), dict(word.split("=", 1) for word in rest[:count]), env)

    @property
    def text(self) -> str:
        """The command as a line of a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join(filter(None, [self.env, *variables, shlex.join(self.words)]))

    @property
    def _program(self) -> tuple[int, str]:
        """(index of the first word that the training program reads itself, the tool that it belongs to, empty for a script)."""
        for index, (word, following) in enumerate(pairwise((*self.words, ""))):
            if (name := Path(word).name) in PROGRAMS:
                return index + 2, PROGRAMS[name]
            if word.endswith(".py"):
                return index + 1, TRL if "trl/scripts/" in word else ""
            if word in MODULE and following not in LAUNCHER_MODULES:
                return index + 2, PROGRAMS.get(following.partition(".")[0], "")
        return 1, ""

    @property
    def start(self) -> int:
        """Index of the first word that the training program reads itself; those before it are the launcher's."""
        return self._program[0]

    @property
    def tool(self) -> str:
        """The tool that reads its flags and its config file."""
        return self._program[1] or (TRL if "config" in self.flags(self.start) else PARSER)

    @property
    def hides_flags(self) -> bool:
        """True if a shell starts the training program, and none of these words are seen to be handed on."""
        is_shell = any(Path(word).name in SHELLS for word in self.words[: self.start])
        return is_shell and not any(word.startswith("--") for word in self.words)

    @property
    def config(self) -> int | None:
        """Index of the word that names its config file; None without one. No flag of axolotl takes a YAML file."""
        of_flags = (".json",) if self._program[1] == AXOLOTL else CONFIG_SUFFIXES
        for index in range(self.start, len(self.words)):
            before, word = self.words[index - 1], self.words[index]
            is_value = index > self.start and _FLAG.match(before) and "=" not in before and before != "--config"
            suffix = Path(word).suffix
            if suffix in CONFIG_SUFFIXES and not (is_value and suffix in of_flags) and not _FLAG.match(word):
                return index
        return None

    def flags(self, begin: int, end: int | None = None) -> dict[str, list[Flag]]:
        """Key -> its flags among these words; `no_` in front of a key counts as the key."""
        by_key: dict[str, list[Flag]] = {}
        index, end = begin, len(self.words) if end is None else end
        config = self.config if begin >= self.start else None
        while index < end:
            word, first = self.words[index], index
            index += 1
            prefix, equals, value = word.partition("=")
            if not word.startswith("--") and not (equals and begin >= self.start and prefix.isidentifier()):
                continue
            if not equals:
                ends = (
                    at
                    for at in range(index, end)
                    if _FLAG.match(self.words[at]) or (at == config and self.words[at - 1] != "--config")
                )
                index = next(ends, end)
            values = (value,) if equals else self.words[first + 1 : index]
            flag = Flag(first, index, prefix, values, bool(equals))
            by_key.setdefault(flag.key.removeprefix("no_"), []).append(flag)
        return by_key

    def values(self) -> dict[str, Any]:
        """Key -> value that its flags set; a flag without a value sets True, with `no_` in front False."""
        last = {key: flags[-1] for key, flags in self.flags(self.start).items()}
        return {key: " ".join(flag.values) if flag.values else flag.key == key for key, flag in last.items()}

    def with_flags(self, values: Mapping[str, Any], removed: Sequence[str] = ()) -> "Command":
        """These flags changed in place, or added at the end; those removed without their values."""
        words, flags, tool = [*self.words], self.flags(self.start), self.tool
        edits = [(flag, key) for key, several in flags.items() if key in values or key in removed for flag in several]
        for flag, key in sorted(edits, key=lambda edit: edit[0].begin, reverse=True):
            words[flag.begin : flag.end] = (
                [] if key in removed else _words(flag.prefix, values[key], tool, flag.is_joined)
            )
        for key, value in values.items():
            if key not in flags:
                words += _words(f"--{key}", value, tool, False)
        return replace(self, words=tuple(words))

    def with_config(self, name: str) -> "Command":
        """The command with another config file, of this name in the same folder."""
        index = self.config
        assert index is not None
        path = Path(self.words[index]).with_name(name)
        return replace(self, words=(*self.words[:index], str(path), *self.words[index + 1 :]))


def _words(flag: str, value: Any, tool: str, is_joined: bool) -> list[str]:
    """The words that set a flag; flag: as the user wrote it."""
    flag = re.sub("^--no[-_]", "--", flag)
    if isinstance(value, bool) and tool == AXOLOTL and not is_joined:  # it has a pair of flags
        return [flag if value else re.sub("^--", "--no-", flag)]
    texts = (
        [*map(str, value)]
        if isinstance(value, list)
        else [json.dumps(value) if isinstance(value, dict) else str(value)]
    )
    if tool == LLAMA_FACTORY and isinstance(value, bool):
        texts = [str(value).lower()]
    return [f"{flag}={texts[0]}"] if is_joined and len(texts) == 1 else [flag, *texts]
