"""Arguments and options that several commands share; a search's are made from their declarations."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer
from typer import Argument

from autotune.core.request import OPTIONS, Option, Settings, flag_of, options_of

MODEL = "Hub id, folder, config JSON, or a built-in name such as gpt2-mini."
Model = Annotated[str, Argument(help=MODEL, metavar="MODEL")]
StudyArgument = Annotated[str, Argument(help="Name or folder of a study.", metavar="STUDY")]
GLOBAL_BATCH_SIZE = "Samples per optimizer step over all GPUs (effective batch size)."
GlobalBatchSize = Annotated[int, typer.Option("--global-batch-size", "-b", help=GLOBAL_BATCH_SIZE)]


PANELS = ("Workload", "What to vary", "Limits", "Output", "Advanced", "Several devices")
"""Panels of the help of a command with many options, in the order shown."""


def option(name: str, declared: Option, panel: str | None = None) -> Any:
    """The option as typer takes it."""
    return typer.Option(
        flag_of(name),
        help=declared.help,
        metavar=declared.metavar or None,
        show_default=declared.default_text or True,
        rich_help_panel=panel,
    )


Text = str | None
Texts = list[str] | None
DeviceOption = Annotated[str, option("device", OPTIONS["device"])]
OutputDir = Annotated[str, option("output_dir", OPTIONS["output_dir"])]
ReportTo = Annotated[Texts, option("report_to", OPTIONS["report_to"])]
SERVER = "Server of `autotune serve`, as https://tune.example.org."
Server = Annotated[Text, typer.Option(help=SERVER, metavar="URL", show_default="this machine")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the result only, without progress.")]


def takes(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a command with `**options`: these options become its parameters, as typer reads them."""

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        *first, _ = signature.parameters.values()
        declared = sorted(options_of(kind).items(), key=lambda item: PANELS.index(item[1][1].panel))
        shown = [_parameter(name, *option) for name, option in declared]
        command.__signature__ = signature.replace(parameters=[*first, *shown])  # type: ignore[attr-defined]
        return command

    return declare


def _parameter(name: str, kind: Any, declared: Option) -> inspect.Parameter:
    kinds, default = get_args(kind) or (kind,), declared.default
    word: Any = (
        list[str] if kind == Settings or name == "report_to" else int if int in kinds and str not in kinds else str
    )
    if default is False:
        word = bool
    elif default is None:
        word = word | None
    elif declared.unit == "share":
        default = f"{default:.0%}"
    elif word is str:
        default = str(default)
    annotation = Annotated[word, option(name, declared, declared.panel)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
