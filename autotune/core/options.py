"""Names of options in messages: on the command line and in Python."""

import re

OF_OTHER_COMMANDS = ("global-batch-size", "gpu", "ranks", "seconds", "rounds", "price-per-hour", "output")
"""Options of commands that are Python functions too, in addition to a search's."""

NAMES = {f"--{name}": name.replace("-", "_") for name in OF_OTHER_COMMANDS}
"""Option -> argument; `autotune.core.request`, which raises the errors that speak by this module, adds those it declares."""

SWITCHES: set[str] = set()
"""Arguments whose options take no value; added in the same way."""

_VALUE = r"""(?:=| (?=\d|'|[a-z]\w*=))(?P<value>'[^']*'|[^\s;`'"]*[^\s;:,.?!()`'"])"""
_COMMAND = r"\bautotune (?:search|estimate|doctor|report|explain|verify|compare|studies|serve|token|login|guide)(?:\\\n|[^`\n])*"
_OPTION = re.compile(rf"(?P<command>{_COMMAND})|(?<![\w-])(?P<flag>--[a-z]+(?:-[a-z]+)*)(?![\w-])(?:{_VALUE})?")


def in_python(text: str) -> str:
    """The text with options as arguments of Python.

    `fresh=True` of `--fresh`, `device="cpu"` of `--device=cpu`, `fix={"workers": "2"}` of `--fix workers=2`, `memory_limit`
    of `--memory-limit`.

    A word after an option is its value if `=` joins them, or if it is a number, in quotes or NAME=VALUE itself.
    Options of other programs stay as they are, and so do commands: from `autotune search` to the end of its lines.
    """
    return _OPTION.sub(_argument, text)


def _argument(option: re.Match[str]) -> str:
    if option["command"] or option["flag"] not in NAMES:
        return option[0]
    name = NAMES[option["flag"]]
    if not (value := option["value"]):
        return f"{name}=True" if name in SWITCHES else name
    if name in ("fix", "only") and "=" in value:
        setting, _, values = value.partition("=")
        several = ", ".join(f'"{each}"' for each in values.split(","))
        return f'{name}={{"{setting}": {f"[{several}]" if name == "only" else several}}}'
    return f"{name}={value}" if value.isdigit() or value[0] == "'" else f'{name}="{value}"'
