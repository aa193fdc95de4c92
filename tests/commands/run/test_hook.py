"""The hook in a program: which training arguments get the instructed fields, and when it leaves a program alone."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import HfArgumentParser

from autotune.commands.run import hook
from autotune.commands.run.exchange import FIND, REACHED, STARTUP, TRAIN, TRIAL, Instructions
from autotune.commands.run.rerun import Command


def module() -> Any:
    """As much of transformers as is watched."""

    @dataclass
    class TrainingArguments:
        size: int = 8

        def __post_init__(self) -> None:
            pass

    class Trainer:
        def train(self) -> str:
            return "trained"

    return SimpleNamespace(TrainingArguments=TrainingArguments, Trainer=Trainer)


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the instructions."""
    monkeypatch.setattr(hook, "MESSAGES", tmp_path)
    monkeypatch.setattr(hook, "made", [])
    return tmp_path


def test_fields_are_those_of_the_training_that_is_meant_and_not_of_a_later_one(
    messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Instructions(fields={"size": 2}).write(messages)
    watched = module()
    hook.watch_arguments(watched)
    assert watched.TrainingArguments(size=4).size == 2
    (messages / REACHED).touch()
    assert watched.TrainingArguments(size=4).size == 4, "of another program of the command"
    monkeypatch.setenv("RANK", "1")
    assert watched.TrainingArguments(size=4).size == 2, "of another rank of it"
    assert len(hook.made) == 3


@pytest.mark.parametrize("purpose", [FIND, TRIAL, TRAIN])
def test_the_launcher_s_precision_gives_way_to_the_fields(
    purpose: str, messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    Instructions(purpose=purpose).write(messages)
    hook.watch_arguments(module())
    assert ("ACCELERATE_MIXED_PRECISION" in os.environ) == (purpose == FIND)


def test_a_program_that_goes_on_when_autotune_has_ended_is_left_alone(messages: Path) -> None:
    watched = module()
    hook.watch_arguments(watched)
    hook.watch_trainer(watched)
    assert watched.TrainingArguments(size=4).size == 4
    assert watched.Trainer().train() == "trained"
    assert not hook.made


def test_arguments_that_are_made_of_flags_are_told_from_those_of_code(
    messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "parsed", [])
    Instructions().write(messages)
    hook.watch_arguments(watched := module())
    watched.TrainingArguments(size=4)
    assert not hook.parsed
    HfArgumentParser(watched.TrainingArguments).parse_args_into_dataclasses(["--size", "4"])
    assert len(hook.parsed) == 1


def test_the_current_folder_stays_on_the_path(tmp_path: Path) -> None:
    command = Command(["python"], {"PYTHONPATH": ":/own"})
    assert command.hooked(tmp_path, Instructions())["PYTHONPATH"].startswith(f"{STARTUP}::/own")
    assert command.hooked(tmp_path, Instructions())["PYTHONPATH"] != f"{STARTUP}:/own"
