"""Fields of a trial's and of the answer's training arguments, and when a training takes the answer."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.commands.run.again import Command, changed
from autotune.commands.run.exchange import BUILT, Facts, Instructions
from autotune.commands.run.start import _again, _without_training
from autotune.commands.trainer.switch import why_kept
from autotune.core.errors import InvalidRequest


def test_only_what_differs_from_the_program_is_set() -> None:
    arguments = {"per_device_train_batch_size": 2, "bf16": False, "optim": "adamw_torch"}
    fields = {"per_device_train_batch_size": 4, "bf16": False, "activation_checkpointing": True}
    assert changed(fields, arguments) == {"per_device_train_batch_size": 4, "activation_checkpointing": True}


def test_the_older_name_of_a_field_gives_way() -> None:
    arguments = {"gradient_checkpointing": True, "activation_checkpointing": True}
    assert changed({"activation_checkpointing": False}, arguments) == {
        "activation_checkpointing": False,
        "gradient_checkpointing": None,
    }


FACTS = Facts(
    by="again",
    why="",
    trainer="Trainer",
    call=1,
    workload={},
    base={"optim": "sgd"},
    arguments={},
    number=1,
    global_batch_size=8,
    ranks=2,
    device="cpu",
    threads=1,
    study_name="train",
    lengths="",
)


def test_an_environment_is_the_same_by_any_of_its_paths(tmp_path: Path) -> None:
    """Checked before several devices are refused."""
    (tmp_path / "link").symlink_to(sys.prefix)
    wanted = Instructions(options={"devices": 2})
    for prefix, problem in ((tmp_path / "link", "Several devices"), (tmp_path, "another Python environment")):
        with pytest.raises(InvalidRequest, match=problem):
            _again(Command((), {}), replace(FACTS, prefix=str(prefix)), wanted, tmp_path)


def test_the_ranks_of_the_program_are_fixed() -> None:
    options = FACTS.request_options({"fix": ["precision=fp32"]})
    assert options["fix"] == ["precision=fp32", "data_parallel_size=2"]
    assert (options["args"], options["device"], options["study_name"]) == ({"optim": "sgd"}, "cpu", "train")


def result(low: float = 1.2, changes: bool = True, micro: int = 4) -> Any:
    """As much of a result as decides."""

    def trial(size: int) -> Any:
        return SimpleNamespace(configuration=SimpleNamespace(micro_batch_size=size))

    return SimpleNamespace(
        changes_settings=changes,
        speedup=SimpleNamespace(low=low),
        best_trial=None,
        numerics=None,
        best=trial(micro),
        baseline=trial(2),
    )


@pytest.mark.parametrize(
    ("answer", "resumes", "text"),
    [
        (result(), False, ""),
        (result(low=1.0), False, "Nothing is shown to be faster."),
        (result(changes=False), False, "Nothing is shown to be faster."),
        (result(), True, "continues a checkpoint"),
        (result(micro=2), True, ""),
    ],
)
def test_a_training_takes_the_answer_only_if_it_is_shown_to_be_faster(answer: Any, resumes: bool, text: str) -> None:
    reason = why_kept(answer, resumes)
    assert text in reason
    assert bool(reason) == bool(text)


@pytest.mark.parametrize(("call", "text"), [(1, "never called Trainer.train."), (3, "called Trainer.train 3 times.")])
def test_a_training_that_was_not_reached_is_named(tmp_path: Path, call: int, text: str) -> None:
    (tmp_path / BUILT).write_text("Slow")
    with pytest.raises(InvalidRequest, match=f"train.py built a Slow and .*{text}"):
        _without_training(["python", "train.py"], tmp_path, 0, Instructions(call=call))
    wanted = Instructions(call=call, then="original")
    assert text in _without_training(["python", "train.py"], tmp_path, 0, wanted).lines[0]
