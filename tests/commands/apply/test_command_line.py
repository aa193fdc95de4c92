"""A command is taken apart into launcher, program, flags and config file, and put together for a shell."""

import shlex

import pytest

from autotune.commands.apply.command_line import Command
from autotune.commands.apply.tools import AXOLOTL, LLAMA_FACTORY, PARSER, TRL


def command(text: str) -> Command:
    return Command.read(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "first", "tool"),
    [
        ("python -u train.py --bf16", "--bf16", PARSER),
        ("torchrun --nproc_per_node 2 train.py --bf16", "--bf16", PARSER),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py --bf16", "--bf16", PARSER),
        ("accelerate launch --num_processes 2 -m pkg.train --bf16", "--bf16", PARSER),
        ("accelerate launch -m axolotl.cli.train c.yml", "c.yml", AXOLOTL),
        ("trl sft --config c.yaml", "--config", TRL),
        ("python /lib/trl/scripts/sft.py --config c.yaml", "--config", TRL),
        ("python own.py --config c.yaml", "--config", TRL),
        ("/home/me/trl/venv/bin/python /home/me/trl/train.py --bf16", "--bf16", PARSER),
        ("axolotl train c.yml", "c.yml", AXOLOTL),
        ("FORCE_TORCHRUN=1 llamafactory-cli train c.yaml", "c.yaml", LLAMA_FACTORY),
        ("uv run trl dpo --bf16", "--bf16", TRL),
        ("my-train --bf16", "--bf16", PARSER),
    ],
)
def test_the_program_s_own_words_and_its_tool(text: str, first: str, tool: str) -> None:
    read = command(text)
    assert read.words[read.start] == first
    assert read.tool == tool


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("trl sft --bf16 --config c.yaml", "c.yaml"),
        ("axolotl train c.yml --bf16", "c.yml"),
        ("axolotl train --bf16 c.yml", "c.yml"),
        ("axolotl train --deepspeed zero.json c.yml", "c.yml"),
        ("llamafactory-cli train c.yaml lr=1", "c.yaml"),
        ("python train.py c.json", "c.json"),
        ("accelerate launch --config_file a.yaml train.py --bf16 True", None),
        ("python train.py --deepspeed ds.json", None),
        ("python train.py --train_file=a.json", None),
    ],
)
def test_the_config_file(text: str, config: str | None) -> None:
    read = command(text)
    if config is None:
        assert read.config is None
    else:
        assert read.config is not None
        assert read.words[read.config] == config


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("python t.py --lr 1 --x 2", "python t.py --lr 3 --x 2"),
        ("python t.py --lr=1", "python t.py --lr=3"),
        ("python t.py --lr -1e-4 --x 2", "python t.py --lr 3 --x 2"),
        ("python t.py --x 'a b'", "python t.py --x 'a b' --lr 3"),
        ("python t.py --lr 1 --lr 2", "python t.py --lr 3 --lr 3"),
        ("A='1 2' python t.py --lr 1", "A='1 2' python t.py --lr 3"),
        ("env A=1 python t.py", "env A=1 python t.py --lr 3"),
        ("torchrun --lr 5 t.py", "torchrun --lr 5 t.py --lr 3"),
        ("llamafactory-cli train c.yaml lr=1", "llamafactory-cli train c.yaml lr=3"),
        ("axolotl train c.yml --lr 1", "axolotl train c.yml --lr 3"),
    ],
)
def test_a_flag_is_changed_in_place_or_appended(before: str, after: str) -> None:
    assert command(before).with_flags({"lr": 3}).text == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("python t.py --bf16 --x 2", "python t.py --bf16 False --x 2"),
        ("python t.py --no-bf16", "python t.py --bf16 False"),
        ("axolotl train c.yml --bf16", "axolotl train c.yml --no-bf16"),
        ("axolotl train --bf16 c.yml", "axolotl train --no-bf16 c.yml"),
        ("llamafactory-cli train c.yaml bf16=true", "llamafactory-cli train c.yaml bf16=false"),
    ],
)
def test_booleans_as_each_tool_reads_them(before: str, after: str) -> None:
    assert command(before).with_flags({"bf16": False}).text == after


@pytest.mark.parametrize("before", ["python t.py --lr 1 --x", "python t.py --x --lr=1", "python t.py --lr 1 2 --x"])
def test_a_flag_is_removed_with_its_values(before: str) -> None:
    assert command(before).with_flags({}, ["lr"]).text == "python t.py --x"
