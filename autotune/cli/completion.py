"""What a shell offers at the tab key: names that autotune knows, read without loading anything heavy."""

from collections.abc import Iterable
from pathlib import Path

import typer

from autotune.core.errors import AutotuneError

Offer = list[tuple[str, str]]
"""(word, what it is) for each word that begins as the typed one does; bash shows the words alone."""


def complete_model(incomplete: str) -> Offer:
    """Built-in models; folders and files are the shell's own."""
    from autotune.workload.model.builtin import BUILT_IN

    return _beginning(incomplete, ((name, shape.description) for name, shape in BUILT_IN.items()))


def complete_task(incomplete: str) -> Offer:
    """The tasks a model can be trained for."""
    from autotune.core.request import TASKS

    return _beginning(incomplete, ((task, "") for task in TASKS))


def complete_space(incomplete: str) -> Offer:
    """The search spaces that are shipped."""
    from autotune.space.file import describe_space, named_spaces

    return _beginning(incomplete, ((name, describe_space(path)) for name, path in named_spaces().items()))


def complete_sampler(incomplete: str) -> Offer:
    """The samplers."""
    from autotune.core.request import SAMPLERS

    return _beginning(incomplete, ((name, "") for name in SAMPLERS))


def complete_objective(incomplete: str) -> Offer:
    """What can be searched for."""
    from autotune.core.request import OBJECTIVES

    return _beginning(incomplete, ((name, "") for name in OBJECTIVES))


def complete_device(incomplete: str) -> Offer:
    """Kinds of devices; whether there is one here is not looked up."""
    return _beginning(incomplete, (("auto", "a GPU if there is one"), ("cpu", ""), ("cuda", "the first GPU")))


def complete_gpu(incomplete: str) -> Offer:
    """The cards whose memory is known."""
    from autotune.core.gpus import CARDS

    return _beginning(incomplete, ((card, "") for card in CARDS))


def complete_study(context: typer.Context, incomplete: str) -> Offer:
    """The studies in the report folder that is named, by default `reports`."""
    folder = Path(str(context.params.get("output_dir") or "reports"))
    return _beginning(incomplete, ((path.parent.name, "") for path in sorted(folder.glob("*/request.json"))))


def _beginning(incomplete: str, words: Iterable[tuple[str, str]]) -> Offer:
    try:
        return [(word, what) for word, what in words if word.startswith(incomplete)]
    except (AutotuneError, OSError):  # a damaged file is told of by the command itself
        return []
