"""Help: every command and option has a sentence, one name means one thing, and colours are as the user wants them."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.cli.help import EXAMPLES, examples
from tests.terminals import COLOUR, ROOT, environment_with

PROGRAM = typer.main.get_command(app)
COMMANDS = PROGRAM.commands  # type: ignore[attr-defined]
OPTIONS = [(name, parameter) for name, command in COMMANDS.items() for parameter in command.params]


def test_every_command_speaks_json() -> None:
    speaking = {command for command, parameter in OPTIONS if parameter.name == "as_json"}
    assert speaking == set(COMMANDS)


def test_every_option_and_command_of_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    known = {option for _, parameter in OPTIONS for option in parameter.opts}
    known |= {"--help", "--version", "--install-completion", "--show-completion"}
    for option in re.findall(r"`(--[a-z][a-z-]*)", text) + re.findall(r"(?<= )--[a-z][a-z-]*", " ".join(lines)):
        assert option in known, option
    for command in re.findall(r"(?:`|\$ )autotune ([a-z][a-z-]*)", text):
        assert command in COMMANDS, command


def help_of(*words: str) -> str:
    """Standard output of a command in a terminal of 80 columns."""
    done = CliRunner().invoke(app, [*words], prog_name="autotune", env={"COLUMNS": "80"})
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def test_the_help_is_as_before(golden: Callable[[str, str], None]) -> None:
    for words in ((), ("--help",), ("search", "--help"), ("report", "--help")):
        text = help_of(*words)
        assert max(map(len, text.splitlines())) <= 80
        golden(f"help/{'_'.join(words) or 'autotune'}.txt".replace("--", ""), text)


def test_every_command_has_examples_that_are_valid() -> None:
    for example in EXAMPLES.strip().splitlines():
        program, name, *words = shlex.split(example)
        assert program == "autotune"
        COMMANDS[name].make_context(name, words)
        assert len(example) < 80
    for command in COMMANDS:
        text = help_of(command, "--help")
        assert examples(command)
        assert all(example in text for example in examples(command))


# Colours ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_a_pipe_gets_colours_only_where_they_are_forced(
    variables: dict[str, str], coloured: bool, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "autotune", "search", "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment_with(**variables), timeout=300
    )
    assert bool(COLOUR.search(done.stdout)) is coloured
    assert ("\x1b" in done.stdout) is bool(variables.get("FORCE_COLOR"))
