"""Options in messages: written as the command line has them, shown in Python as arguments."""

import pytest

from autotune.cli.app import app
from autotune.core.errors import InvalidRequest
from autotune.core.options import OF_OTHER_COMMANDS, in_python
from autotune.core.request import OPTIONS, flag_of, is_switch


@pytest.mark.parametrize(
    ("written", "python"),
    [
        ("Use --fresh to begin again.", "Use fresh=True to begin again."),
        ("Raise --memory-limit, or shorten --sequence-length.", "Raise memory_limit, or shorten sequence_length."),
        ("Use --sequence-length 512 or less.", "Use sequence_length=512 or less."),
        ("or give --memory-limit 24GiB.", 'or give memory_limit="24GiB".'),
        ("(--search-space=lora)", '(space="lora")'),
        ("Use --device=cpu, or check", 'Use device="cpu", or check'),
        ("--text-column 'a b' needs a --dataset.", "text_column='a b' needs a dataset."),
        ("Write --fix precision=bf16.", 'Write fix={"precision": "bf16"}.'),
        ("Write --only workers=2,4.", 'Write only={"workers": ["2", "4"]}.'),
        ("`--only workers=2` or `--headroom 10%`", '`only={"workers": ["2"]}` or `headroom="10%"`'),
        ("--report-to=wandb was given up", 'report_to="wandb" was given up'),
        ("torchrun --nproc-per-node 2 train.py --no-such", "torchrun --nproc-per-node 2 train.py --no-such"),
        ("`autotune report STUDY --format csv`", "`autotune report STUDY --format csv`"),
        (
            "Type:\nautotune search m \\\n    --task x -b 8\nUse --fresh.",
            "Type:\nautotune search m \\\n    --task x -b 8\nUse fresh=True.",
        ),
        ("accelerate launch --multi_gpu --num_processes 2", "accelerate launch --multi_gpu --num_processes 2"),
        ("no option--fresh, x--fresh-ness", "no option--fresh, x--fresh-ness"),
    ],
)
def test_options_are_arguments_in_python(written: str, python: str) -> None:
    assert in_python(written) == python
    assert in_python(python) == python, "told twice it stays as it is"


def test_an_error_speaks_python_and_keeps_what_was_written_for_the_command_line() -> None:
    error = InvalidRequest("--fresh is off.", "Use --fresh.")
    assert str(error) == "fresh=True is off. Use fresh=True."
    assert (error.message, error.advice) == ("fresh=True is off.", "Use fresh=True.")
    assert error.written == ("--fresh is off.", "Use --fresh.")


def test_every_option_of_a_function_s_command_is_known_and_flags_are_flags() -> None:
    import typer

    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shared = [known[name] for name in ("search", "estimate", "guide", "verify", "explain", "compare")]
    options = {
        text: param for command in shared for param in command.params for text in param.opts if text.startswith("--")
    }
    alone, declared = {"--json", "--quiet", "--server", "--detach"}, {flag_of(name) for name in OPTIONS}
    assert set(options) - alone == declared | {f"--{name}" for name in OF_OTHER_COMMANDS}
    assert {name for name, option in options.items() if option.is_flag} - alone == {
        flag_of(name) for name in OPTIONS if is_switch(name)
    }
