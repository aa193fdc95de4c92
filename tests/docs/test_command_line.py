"""What the page of the command line says of Python is so."""

import dataclasses
import inspect
import re

import pytest

import autotune
from autotune.cli_report import TABLES
from autotune.request import TuningRequest, tuning_request
from tests.docs.pages import PAGES, generator

INTRODUCTION = PAGES["docs/command_line.md"].partition("```{include}")[0]
FUNCTIONS = {
    "search": "search",
    "estimate": "estimate",
    "compare": "compare",
    "guide": "run_guide",
    "verify": "verify_study",
    "explain": "explanation",
}
COMMANDS_ALONE = {"doctor", "spaces", "studies"}
OPTIONS_ALONE = {"as_json", "quiet"}
BY_FOLDER = {"verify", "explain"}
REQUEST = {field.name for field in dataclasses.fields(TuningRequest)} | set(
    inspect.signature(tuning_request).parameters
)


def test_every_command_is_spoken_of() -> None:
    assert {*FUNCTIONS, *COMMANDS_ALONE, "report"} == set(generator().commands())
    for name in {*FUNCTIONS, *FUNCTIONS.values(), *COMMANDS_ALONE, "report"}:
        assert f"`{name}`" in INTRODUCTION


@pytest.mark.parametrize("command", FUNCTIONS)
def test_every_option_is_an_argument(command: str) -> None:
    arguments = set(inspect.signature(getattr(autotune, FUNCTIONS[command])).parameters)
    if "options" in arguments:
        arguments |= REQUEST
    if command in BY_FOLDER:
        assert "folder" in arguments
        arguments |= {"study", "output_dir"}
    assert {one.name for one in generator().commands()[command].params} - OPTIONS_ALONE <= arguments


def test_the_readme_names_every_format_of_a_report() -> None:
    (row,) = [line for line in PAGES["README.md"].splitlines() if line.startswith("| `report` |")]
    for format in (*TABLES, "html", "json"):
        assert re.search(rf"\b{format}\b", row), format


def test_what_is_a_command_alone_has_no_function() -> None:
    assert not COMMANDS_ALONE & set(autotune.__all__)
