"""Layout of the help: panels, types, defaults and examples."""

import re
from copy import copy
from typing import Any, get_args, get_type_hints

from typer.core import TyperCommand

PANELS = {
    "Required": "global_batch_size",
    "Workload": "task sequence_length dataset dataset_split text_column label_column tokenizer args",
    "What to vary": "space fix only keep_numerics require_parity allow_loss_difference objective",
    "Limits": "device gpu memory_limit headroom n_trials timeout training_steps",
    "Output": "study_name output_dir fresh report_to as_json quiet help",
    "Advanced": "sampler margin confirmation_rounds probe_timeout seed no_history no_risk trust_remote_code",
    "Several devices": "devices cores_per_device executor allow_unauthenticated",
    "Service": "server detach",
}
"""Panel of a command with many options -> its parameters, in the order shown; others are in Output."""

PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}

MANY = 10
"""Options from which on a command has panels."""

TYPES = {int: "INT", float: "NUMBER"}
"""Types of options whose values need no word of their own."""

EXAMPLES = """
autotune search gpt2-mini -b 16 --sequence-length 32 --device cpu --n-trials 4
autotune search org/model -b 32 --dataset train.jsonl --timeout 30m
autotune search ./model -b 64 --args arguments.json --keep-numerics
autotune estimate gpt2-large -b 32 --gpu 4090
autotune estimate org/model -b 16 --memory-limit 24GiB
autotune doctor --all
autotune report first
autotune report first --format csv --columns number,samples_per_second
autotune report first --output first.csv
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
"""Commands to start from, at the end of each one's help."""

START = """autotune finds the fastest TrainingArguments for your model on your hardware.

A first search, on a built-in model:
  autotune search gpt2-mini -b 16 --sequence-length 32 --device cpu --n-trials 4

  autotune search MODEL -b 32 --dataset train.jsonl  your own data
  autotune estimate MODEL -b 32 --gpu 4090           will it fit?
  autotune doctor                                    what works here
  autotune studies                                   your results

All commands: autotune --help     Options of a command: autotune search --help"""
"""What `autotune` alone prints."""


def examples(name: str) -> list[str]:
    """The examples of a command."""
    return [line for line in EXAMPLES.splitlines() if line.split()[1:2] == [name]]


class WithPanels:
    """A command whose help has panels, words for types, none for flags, and defaults after the text."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        shown, order, kinds = copy(self), list(PANEL_OF), get_type_hints(self.callback)
        shown.params = [
            _for_help(parameter, kinds.get(parameter.name, str), len(self.params) > MANY)
            for parameter in self.get_params(ctx)
        ]
        shown.params.sort(key=lambda parameter: order.index(parameter.name) if parameter.name in order else -1)
        shown.add_help_option, shown.get_usage = False, self.get_usage
        super(WithPanels, shown).format_help(ctx, formatter)  # type: ignore[misc]


class Command(WithPanels, TyperCommand):
    """A command; its usage names the argument first."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        options, *arguments = super().collect_usage_pieces(ctx)
        return [*(re.sub("[{}]", "", argument) for argument in arguments), options]


def _for_help(parameter: Any, kind: Any, in_panels: bool) -> Any:
    """The parameter as the help shows it. kind: its annotation in the command's function."""
    shown = copy(parameter)
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    shown.show_default, shown.required = False, False
    if parameter.param_type_name == "argument":
        shown.display_type_rich = lambda ctx: ""
        return shown
    panel = PANEL_OF.get(parameter.name, "Output")
    shown.rich_help_panel = None
    if in_panels:  # what one command requires, another one has a default for
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
