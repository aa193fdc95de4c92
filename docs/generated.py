"""Pages that are made from the code, so that they cannot go stale: settings, columns, command line, messages, API."""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

import autotune
from autotune import errors
from autotune.cli import app
from autotune.cli.help import examples
from autotune.commands.compare.columns import COMPARED
from autotune.core.configuration import Configuration, word
from autotune.core.environment import Environment
from autotune.core.gpus import CARDS
from autotune.core.interval import Interval
from autotune.core.measurement import Measurement, Outcome
from autotune.core.trial import Trial
from autotune.core.units import format_bytes
from autotune.report.columns import AFTER, BEFORE, Column, setting_column
from autotune.service.client import Client
from autotune.space.file import named_spaces, open_space
from autotune.space.search_space import RuledOut
from autotune.space.settings import SETTINGS, Setting
from autotune.study.plan import Progress
from autotune.study.result import SearchResult

PACKAGE = Path(autotune.__file__).parent
NOUNS = (SearchResult, Trial, Configuration, Measurement, Outcome, Interval, Progress, RuledOut, Environment)
"""What a result is made of."""
KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
ERRORS = [kind for kind in KINDS if issubclass(kind, errors.AutotuneError)]
WARNINGS = [kind for kind in KINDS if issubclass(kind, Warning)]


def write(docs: Path) -> None:
    """Write every page: a page a command into commands/, the parts that other pages include into _generated/.

    Only those that changed are written.
    """
    pages = {f"_generated/{name}": make() for name, make in PAGES.items()}
    pages |= {f"commands/{name}.md": command_page(name, command) for name, command in commands().items()}
    for name, text in pages.items():
        path = docs / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# Settings and spaces ------------------------------------------------------------------------------------------------


def settings() -> str:
    """A section for each setting: what it is, its values, what it changes, where it is searched."""
    spaces = {name: open_space(name).values for name in named_spaces()}
    return "\n".join(line for setting in SETTINGS.values() for line in _setting(setting, spaces))


def _setting(setting: Setting, spaces: dict[str, Any]) -> Iterator[str]:
    values = ", ".join(f"`{word(value)}`" for value in setting.values) or "every divisor of the global batch size"
    searched = ", ".join(f"`{name}`" for name, settings in spaces.items() if setting.name in settings)
    yield from (f"## {setting.name}", "", setting.summary, "")
    yield f"- values: {values}"
    yield f"- changes: {', '.join(setting.changes)}"
    if setting.active_if:
        name, means = setting.active_if
        able = ", ".join(f"`{word(value)}`" for value in SETTINGS[name].values if means(value))
        yield f"- has an effect only with `{name}`: {able}"
    yield from (
        f"- search spaces: {searched or 'none; add it with `--only`'}",
        f"- file: `autotune/space/settings/{setting.name}.py`",
        "",
    )


def spaces() -> str:
    """The shipped spaces: name, settings, what for."""
    opened = {name: open_space(name) for name in named_spaces()}
    rows = [
        (f"`{name}`", space.description, ", ".join(f"`{setting}`" for setting in space.values))
        for name, space in opened.items()
    ]
    return table(("space", "what it is for", "settings"), rows)


def cards() -> str:
    """The shipped cards from the smallest memory to the largest."""
    rows = [
        (f"`{card.name}`", format_bytes(card.memory_bytes), ", ".join(f"`{name}`" for name in card.flops), card.source)
        for card in CARDS.values()
    ]
    return table(("card", "memory", "precisions", "source"), rows)


# Columns ----------------------------------------------------------------------------------------------------------


def columns(known: Iterable[Column]) -> str:
    """The columns of a table that programs read."""
    rows = [(f"`{item.name}`", f"`{item.dtype}`", item.unit or "-", item.meaning) for item in known]
    return table(("column", "dtype", "unit", "meaning"), rows)


def setting_columns() -> list[Column]:
    """Those of settings that do not stand in every study's table anyway."""
    always = {column.name for column in BEFORE}
    return [setting_column(name) for name in SETTINGS if name not in always]


# The command line -------------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """The commands of the program by name."""
    known: dict[str, Any] = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]
    return known


def command_page(name: str, command: Any) -> str:
    """A command's sentence, how it is called, its options with their defaults, examples."""
    return "\n".join(_command(name, command))


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if not param.opts[0].startswith("-")]
    options = [param for param in command.params if param not in arguments]
    called = " ".join(argument.name.upper() + ("..." if argument.nargs == -1 else "") for argument in arguments)
    yield from (f"# autotune {name}", "", " ".join(inspect.cleandoc(command.help or "").split()), "")
    yield from ("```text", f"autotune {name} {called} [OPTIONS]".replace("  ", " "), "```", "")
    yield from (f"- `{argument.name.upper()}`: {argument.help}" for argument in arguments)
    yield ""
    rows = [(_spelling(option), option.help or "", _default(option)) for option in options if not option.hidden]
    yield from (table(("option", "what it does", "default"), rows), "") if rows else ()
    yield from ("## Examples", "", "```sh", *examples(name), "```", "")


def _spelling(option: Any) -> str:
    return ", ".join(f"`{opt}`" for opt in (*option.opts, *option.secondary_opts))


def _default(option: Any) -> str:
    if option.required:
        return "must be given"
    if isinstance(option.show_default, str):
        return str(option.show_default)
    return f"`{option.default}`" if option.default not in (None, False, (), []) else ""


# Errors and their messages ----------------------------------------------------------------------------------------


def messages() -> str:
    """Every message of an error, by class, with the advice that ends it; `…` stands for a name or number."""
    by_class: dict[str, dict[str, str]] = {}
    for name, said, advice in raised():
        if re.search(r"\w", said):
            by_class.setdefault(name, {})[said] = advice
    parts = []
    for error in ERRORS:
        if known := by_class.get(error.__name__):
            rows = sorted((_cell(said), _cell(advice)) for said, advice in known.items())
            parts += [f"## Every {error.__name__}", "", table(("message", "what to do"), rows), ""]
    return "\n".join(parts)


def raised() -> Iterator[tuple[str, str, str]]:
    """(error class, message, advice) of every place that makes one; `…` for what is filled in."""
    names = {item.__name__ for item in ERRORS}
    for node in (node for tree in _trees() for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names and node.args:
            said, *advice = (_text(arg) for arg in node.args)
            yield node.func.id, said, advice[0] if advice else ""


def sentences() -> Iterator[str]:
    """Every text of the source; `…` for what is filled in."""
    for node in (node for tree in _trees() for node in ast.walk(tree)):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            yield _text(node)


@cache
def _trees() -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]


def _text(node: ast.expr) -> str:
    """A string of the source; `…` for everything in it that is filled in."""
    if isinstance(node, ast.Constant):
        return re.sub(r"\{\w+(:[^{}]*)?\}", "…", str(node.value))  # what `str.format` fills in
    if isinstance(node, ast.JoinedStr):
        return re.sub("…+", "…", "".join(_text(value) for value in node.values))
    return "…"


def _cell(text: str) -> str:
    """As code; backticks of its own become quotes, so that they do not end it."""
    plain = text.replace("`", "'")
    return f"`{plain}`" if re.search(r"\w", plain) else ""


# The API ----------------------------------------------------------------------------------------------------------


def api() -> str:
    """Sphinx's directives for every public name."""
    public = [(name, getattr(autotune, name)) for name in autotune.__all__]
    functions = [f".. autofunction:: autotune.{name}" for name, thing in public if not inspect.isclass(thing)]
    return "\n".join(
        (
            *("## Functions", "", _rst(functions)),
            *("## The result", "", _rst([_class(autotune.TuningResult)])),
            *("## Callback of a training", "", _rst([".. autoclass:: autotune.PromiseCallback"])),
            *(
                "## Sampler of Optuna's",
                "",
                _rst([".. autoclass:: autotune.PhysicsSampler\n   :members: configuration"]),
            ),
            *("## Parts of a result", "", _rst(map(_class, NOUNS))),
            *("## Client of a server", "", _rst([_class(Client)])),
            *("## Errors", "", _rst(map(_class, ERRORS))),
            *("## Warnings", "", _rst(map(_class, WARNINGS))),
        )
    )


def _class(thing: type) -> str:
    """Without its constructor: people read these, and build none."""
    kinds = "" if thing.__base__ is object else "\n   :show-inheritance:"
    return f".. autoclass:: {thing.__module__}.{thing.__name__}()\n   :members:{kinds}"


# The tutorial -----------------------------------------------------------------------------------------------------


def tutorial() -> str:
    """The executed notebook as a page: its cells, each with what it printed or returned."""
    book = json.loads((PACKAGE.parent / "examples" / "tutorial.ipynb").read_text(encoding="utf-8"))
    return "\n".join(line for cell in book["cells"] for line in _cell_lines(cell))


def _cell_lines(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield from (source, "")
        return
    yield from ("```py", source, "```", "")
    for output in cell["outputs"]:
        text = "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))
        if text and output.get("name") != "stderr":
            yield from ("```text", text.rstrip(), "```", "")


def _rst(directives: Any) -> str:
    return "```{eval-rst}\n" + "\n\n".join(directives) + "\n```\n"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings,
    "spaces.md": spaces,
    "cards.md": cards,
    "columns_sizes.md": lambda: columns(BEFORE),
    "columns_measured.md": lambda: columns(AFTER),
    "columns_settings.md": lambda: columns(setting_columns()),
    "columns_compared.md": lambda: columns(COMPARED),
    "messages.md": messages,
    "api.md": api,
    "tutorial.md": tutorial,
}
