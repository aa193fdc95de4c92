"""Pages that are made from the code: nothing of the code is missing in them."""

import typer

import autotune
from autotune.cli.app import app
from autotune.space.settings import SETTINGS
from tests.docs.pages import docs_module

MADE = docs_module("generated")


def test_every_setting_has_its_section_with_every_value() -> None:
    sections = dict(part.split("\n", 1) for part in MADE.settings().split("## ")[1:])
    assert list(sections) == list(SETTINGS)
    for name, section in sections.items():
        assert SETTINGS[name].summary in section
        assert all(f"`{value}`".lower() in section or type(value) is bool for value in SETTINGS[name].values)


def test_every_command_and_option_is_there_with_its_help() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        text = MADE.command_page(name, command)
        assert text.startswith(f"# autotune {name}\n")
        assert f"```sh\nautotune {name}" in text
        for item in (param for param in command.params if not getattr(param, "hidden", False)):
            assert item.help
            assert " ".join(item.help.split()).replace("|", "\\|") in text
            assert item.opts[0] in text or item.name.upper() in text


def test_every_public_name_is_in_the_api() -> None:
    text = MADE.api()
    assert all(name in text for name in (*autotune.__all__, "autotune.errors.NotApplied"))
