"""Layout of the help: panels, types, defaults and examples."""

import inspect
import re
from copy import copy
from typing import Any, get_args

from typer.core import TyperCommand

from autotune.core.request import EstimateOptions, SearchOptions, options_of

PANELS = (
    "Command",
    "Required",
    "Workload",
    "What to vary",
    "Limits",
    "Output",
    "Advanced",
    "Several devices",
    "Service",
)
"""Panels of a command with many options, in the order shown."""

PANEL_OF = {
    name: option.panel for kind in (SearchOptions, EstimateOptions) for name, (_, option) in options_of(kind).items()
}
PANEL_OF |= dict.fromkeys(("then", "by", "call", "dry_run"), "Command")
PANEL_OF |= {"global_batch_size": "Required", "server": "Service", "detach": "Service"}
PANEL_OF |= dict.fromkeys(("as_json", "quiet", "help"), "Output")
"""Parameter -> its panel; all others are in Output."""

ORDER = tuple(PANEL_OF)

MANY = 10
"""Options from which on a command has panels."""

TYPES = {int: "INT", float: "NUMBER"}
"""Types of options with values that need no metavar."""

EXAMPLES = """
autotune search gpt2-mini -b 16 --sequence-length 32 --device cpu --n-trials 4
autotune search org/model -b 32 --dataset train.jsonl --timeout 30m
autotune search ./model -b 64 --args arguments.json --keep-numerics
autotune run -- python train.py --output_dir output
autotune run --then train -- torchrun --nproc-per-node 2 train.py
autotune estimate gpt2-large -b 32 --gpu 4090
autotune estimate org/model -b 16 --memory-limit 24GiB
autotune doctor --all
autotune report first
autotune report first --format csv --columns number,samples_per_second
autotune report first --output first.csv
autotune apply first sft.yaml
autotune apply first -- torchrun train.py --bf16 True
autotune explain first
autotune verify first --steps 200
autotune compare first second --price-per-hour 2.50EUR
autotune studies --output-dir reports
autotune serve --models team=/srv/models --data team=/srv/data
autotune token create anna --role submitter --days 90
autotune login https://tune.example.org
autotune search-spaces
autotune guide bert-mini --device cpu
"""
"""Commands to start from, at the end of each command's help."""

START = """autotune finds the fastest TrainingArguments for your model on your hardware.

A first search, on a built-in model:
  autotune search gpt2-mini -b 16 --sequence-length 32 --device cpu --n-trials 4

  autotune run -- python train.py                    your own program
  autotune search MODEL -b 32 --dataset train.jsonl  your own data
  autotune estimate MODEL -b 32 --gpu 4090           will it fit?
  autotune doctor                                    what works here
  autotune studies                                   your results

All commands: autotune --help     Options of a command: autotune search --help"""
"""Output of `autotune` without arguments."""


def examples(name: str) -> list[str]:
    """The examples of a command."""
    return [line for line in EXAMPLES.splitlines() if line.split()[1:2] == [name]]


class WithPanels:
    """A command with panels in its help, words for types, none for flags, and defaults after the text."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        shown, declared = copy(self), inspect.signature(self.callback).parameters
        shown.params = [
            _for_help(parameter, declared[parameter.name].annotation if parameter.name in declared else str, panels)
            for panels in [len(self.params) > MANY]
            for parameter in sorted(self.get_params(ctx), key=_position)
        ]
        shown.add_help_option, shown.get_usage = False, self.get_usage
        super(WithPanels, shown).format_help(ctx, formatter)  # type: ignore[misc]


def _position(parameter: Any) -> tuple[int, int]:
    """Arguments and options of one command alone come first in their panel, options of all commands last."""
    panel = PANELS.index(PANEL_OF.get(parameter.name, "Output"))
    return panel, ORDER.index(parameter.name) if parameter.name in ORDER else -1


class Command(WithPanels, TyperCommand):
    """A command; its usage names the argument first, but for one that takes another command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        options, *pieces = super().collect_usage_pieces(ctx)
        arguments = [re.sub("[{}]", "", piece) for piece in pieces]
        return [*arguments, options] if ctx.allow_interspersed_args else [options, "--", *arguments]


def _for_help(parameter: Any, annotation: Any, in_panels: bool) -> Any:
    """The parameter as the help shows it. annotation: in the command's function."""
    shown, kind = copy(parameter), (get_args(annotation) or (annotation,))[0]
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    shown.show_default, shown.required = False, False
    if parameter.param_type_name == "argument":
        shown.display_type_rich = lambda ctx: ""
        return shown
    panel = PANEL_OF.get(parameter.name, "Output")
    shown.rich_help_panel = None
    if in_panels:  # an option that one command requires has a default in another one
        shown.rich_help_panel = "Workload" if panel == "Required" and not parameter.required else panel
    if parameter.is_flag:
        shown.metavar = ""
        return shown
    shown.metavar = parameter.metavar or next(
        (TYPES[item] for item in (kind, *get_args(kind)) if item in TYPES), "TEXT"
    )
    if not parameter.required:
        shown.help = rf"{parameter.help} [dim]\[default: {'none' if default is None else default}][/dim]"
    return shown
