"""Shell completion: names of models, studies and values of options, read without loading anything heavy."""

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from autotune.core.configuration import word
from autotune.core.errors import AutotuneError
from autotune.core.request import OPTIONS

Words = Iterable[tuple[str, str]]
"""(word, description); bash shows the words alone."""


def _completion(words: Callable[[], Words]) -> Callable[[str], list[tuple[str, str]]]:
    return lambda incomplete: _starting_with(incomplete, words)


def _starting_with(incomplete: str, words: Callable[[], Words]) -> list[tuple[str, str]]:
    try:
        return [(word, help) for word, help in words() if word.startswith(incomplete)]
    except (AutotuneError, OSError):  # the command itself reports a damaged file
        return []


def _models() -> Words:
    from autotune.workload.model.builtin import BUILT_IN

    return ((name, shape.description) for name, shape in BUILT_IN.items())


def _spaces() -> Words:
    from autotune.space.file import named_spaces, open_space

    return ((name, open_space(name).description) for name in named_spaces())


def _gpus() -> Words:
    from autotune.core.gpus import CARDS

    return ((name.replace(" ", "-"), "") for name in CARDS)  # a shell would split it at its blank


complete_model = _completion(_models)


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """`NAME=` of a setting, then its values, also after a comma."""
    from autotune.space.settings import SETTINGS

    name, equals, values = incomplete.partition("=")
    if not equals:
        return _starting_with(incomplete, lambda: ((f"{name}=", setting.summary) for name, setting in SETTINGS.items()))
    choices = SETTINGS[name].values if name in SETTINGS else ()
    before = incomplete[: len(incomplete) - len(values.rpartition(",")[2])]
    return _starting_with(incomplete, lambda: ((f"{before}{word(value)}", "") for value in choices))


def complete_study(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Studies in `--output-dir`, by default `reports`."""
    folder = Path(str(context.params.get("output_dir") or "reports"))
    return _starting_with(
        incomplete, lambda: ((path.parent.name, "") for path in sorted(folder.glob("*/request.json")))
    )


def _choices(name: str) -> Callable[[str], list[tuple[str, str]]]:
    return _completion(lambda: dict.fromkeys(OPTIONS[name].choices, "").items())


COMPLETIONS: dict[str, Callable[[str], list[tuple[str, str]]]] = {
    **{name: _choices(name) for name, option in OPTIONS.items() if option.choices},
    "device": _completion(lambda: (("auto", "a GPU if there is one"), ("cpu", ""), ("cuda", "the first GPU"))),
    "fix": complete_setting,
    "gpu": _completion(_gpus),
    "only": complete_setting,
    "space": _completion(_spaces),
}
"""Option -> completion of its value."""
