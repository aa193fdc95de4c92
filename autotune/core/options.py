"""Names of options in messages: on the command line and in Python."""

import re

FLAGS = {
    "fresh",
    "no-history",
    "no-risk",
    "keep-numerics",
    "require-parity",
    "allow-loss-difference",
    "allow-unauthenticated",
    "trust-remote-code",
}
"""Options without a value."""

OPTIONS = FLAGS | {
    *("task", "sequence-length", "dataset", "dataset-split", "text-column", "label-column", "tokenizer"),
    *(
        "fix",
        "only",
        "device",
        "devices",
        "cores-per-device",
        "executor",
        "memory-limit",
        "headroom",
        "n-trials",
        "timeout",
        "probe-timeout",
        "sampler",
        "margin",
    ),
    *("confirmation-rounds", "training-steps", "objective", "seed", "args", "output-dir", "report-to", "study-name"),
    *("global-batch-size", "search-space", "gpu", "steps", "rounds", "price-per-hour", "output", "seconds"),
}
"""Options of commands that are Python functions too."""

ARGUMENTS = {"search-space": "space"}
"""Options whose argument in Python has another name."""

_VALUE = r"=(?P<word>[^\s;]*[^\s;:,.?!()])| (?P<pair>[a-z]\w*=[^\s;]*[^\s;:,.?!()])| (?P<number>\d[\w.]*\w|\d|'[^']*')"
_OPTION = re.compile(rf"(?<![\w-])--(?P<name>[a-z]+(?:-[a-z]+)*)(?![\w-])(?:{_VALUE})?")


def in_python(text: str) -> str:
    """The text with options as arguments of Python: `fresh=True` of `--fresh`, `device="cpu"` of `--device=cpu`,
    `fix={"workers": "2"}` of `--fix workers=2`, `memory_limit=` of `--memory-limit`.

    A word after an option is its value where `=` joins them, or where it is a number, in quotes or NAME=VALUE itself.
    Options of other programs stay as they are.
    """
    return _OPTION.sub(_argument, text)


def _argument(option: re.Match[str]) -> str:
    if option["name"] not in OPTIONS:
        return option[0]
    name = ARGUMENTS.get(option["name"], option["name"].replace("-", "_"))
    given = option["pair"] or option["word"]
    if option["number"]:
        digits = option["number"].isdigit() or option["number"].startswith("'")
        return f"{name}={option['number']}" if digits else f'{name}="{option["number"]}"'
    if option["name"] in ("fix", "only") and given and "=" in given:
        setting, _, values = given.partition("=")
        several = ", ".join(f'"{value}"' for value in values.split(","))
        return f'{name}={{"{setting}": {f"[{several}]" if name == "only" else several}}}'
    if given:
        return f'{name}="{given}"'
    return f"{name}=True" if option["name"] in FLAGS else f"{name}="
