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

import autotune
from autotune.cli.app import app
from autotune.cli.help import EXAMPLES, examples
from autotune.core.request import flag_of
from tests.terminals import COLOUR, ROOT, environment_with, terminal

PROGRAM = typer.main.get_command(app)
COMMANDS = PROGRAM.commands  # type: ignore[attr-defined]
OPTIONS = [(name, parameter) for name, command in COMMANDS.items() for parameter in command.params]


def test_every_command_has_a_sentence_of_help() -> None:
    for name, command in COMMANDS.items():
        assert re.fullmatch(r"[A-Z][^\n]+\.", command.help.strip()), name


def test_every_option_has_help_that_is_a_sentence() -> None:
    for command, parameter in OPTIONS:
        assert re.fullmatch(r"[A-Z].*\.\)?", parameter.help or ""), f"{command} {parameter.opts}"


def test_one_name_means_one_thing_in_all_commands() -> None:
    first: dict[str, tuple[str, bool]] = {}
    for command, parameter in OPTIONS:
        known = (re.split(r"\W", parameter.help)[0], getattr(parameter, "is_flag", False))
        assert first.setdefault(parameter.opts[0], known) == known, f"{command} {parameter.opts[0]}"


def test_every_option_is_the_argument_with_dashes() -> None:
    for command, parameter in OPTIONS:
        if isinstance(parameter, typer.core.TyperOption):
            assert parameter.name == "as_json" or parameter.opts[0] == flag_of(parameter.name), command


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


def test_the_version_is_the_package_s() -> None:
    assert help_of("--version") == f"autotune {autotune.__version__}\n"


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


def test_arguments_are_in_capitals() -> None:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                assert re.fullmatch(r"\[?[A-Z]+\]?(\.\.\.)?", parameter.metavar or ""), f"{name} {parameter.name}"


def test_the_list_of_search_spaces_fits_80_columns_and_the_default_is_first() -> None:
    lines = help_of("search-spaces").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("default ")
    names = [line.split()[0] for line in lines if line[:1].isalpha()]
    assert names[1:] == sorted(names[1:])


# Colours ------------------------------------------------------------------------------------------------------------


def test_no_color_is_honoured_on_a_terminal_and_colours_are_there_without_it(tmp_path: Path) -> None:
    words = ["search", "--help"]
    with terminal(words, tmp_path) as colourful, terminal(words, tmp_path, NO_COLOR="1") as plain:
        assert colourful.end() == plain.end()
    assert COLOUR.search(colourful.text)
    assert not COLOUR.search(plain.text)


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


@pytest.mark.parametrize("columns", [42, 200])
def test_help_fits_the_terminal(columns: int, tmp_path: Path) -> None:
    with terminal(["search", "--help"], tmp_path, columns, NO_COLOR="1") as shown:
        assert shown.end() == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown.text).splitlines()
    assert max(map(len, lines)) <= columns
