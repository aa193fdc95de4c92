"""Fields of a trial's and of the answer's training arguments, and when a training takes the answer."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.commands.result import TuningResult
from autotune.commands.run import start
from autotune.commands.run.exchange import BUILT, RERUN, Facts, Instructions
from autotune.commands.run.program import _facts, train_with_answer
from autotune.commands.run.rerun import Command, changed
from autotune.commands.run.start import _without_training
from autotune.commands.trainer.switch import why_kept
from autotune.core.errors import InvalidRequest
from tests import makers
from tests.commands.trainer.test_apply import found
from tests.trainers import built


def facts(**parts: Any) -> Facts:
    """Facts of a program, with these."""
    usual: dict[str, Any] = {
        **{"mode": RERUN, "why": "", "trainer": "Trainer", "call": 1, "number": 1, "global_batch_size": 8, "ranks": 1},
        **{"device": "cpu", "study_name": "train", "prefix": sys.prefix, "workload": {"name": "Model"}},
        **{"base": {}, "arguments": {}, "variables": {}},
    }
    return Facts(**usual | parts)


def test_the_older_name_of_a_field_gives_way() -> None:
    arguments = {"gradient_checkpointing": True, "activation_checkpointing": True}
    of_program = facts(arguments=arguments, base=arguments)
    assert changed({"activation_checkpointing": False}, of_program, {}) == {
        "activation_checkpointing": False,
        "gradient_checkpointing": None,
    }
    assert not changed({"activation_checkpointing": True}, of_program, {})


def test_a_field_that_only_the_program_has_goes_back_to_its_default() -> None:
    arguments = {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 4, "dataloader_persistent_workers": True}
    of_program = facts(arguments=arguments, base=arguments)
    assert changed({"dataloader_num_workers": 0}, of_program, {"dataloader_persistent_workers": False}) == {
        **{"dataloader_num_workers": 0, "dataloader_prefetch_factor": None, "dataloader_persistent_workers": False},
    }


def test_an_environment_is_the_same_by_any_of_its_paths(tmp_path: Path) -> None:
    """Checked before several devices are refused."""
    (tmp_path / "link").symlink_to(sys.prefix)
    wanted = Instructions(options={"devices": 2})
    for prefix, problem in ((tmp_path / "link", "Several devices"), (tmp_path, "another Python environment")):
        with pytest.raises(InvalidRequest, match=problem):
            start._rerun(Command((), {}), facts(prefix=str(prefix)), wanted, tmp_path)


@pytest.mark.parametrize(
    ("requested", "mode", "name"), [("mine", "", "mine-rerun"), ("mine", RERUN, "mine"), ("", RERUN, ".*-rerun")]
)
def test_a_search_that_could_not_send_the_trainer_goes_on_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requested: str, mode: str, name: str
) -> None:
    monkeypatch.setattr("autotune.commands.tune._script", lambda: "train")
    options = {"study_name": requested} if requested else {}
    of_program = _facts(built(tmp_path), Instructions(mode=mode, options=options), RERUN, "", [], {})
    assert re.fullmatch(name, str(of_program.request_options(options)["study_name"]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_ranks_of_the_program_are_fixed(ranks: int) -> None:
    options = facts(ranks=ranks, base={"optim": "sgd"}).request_options({"fix": ["precision=fp32"]})
    assert options["fix"] == ["precision=fp32", f"data_parallel_size={ranks}"]
    assert (options["args"], options["device"], options["study_name"]) == ({"optim": "sgd"}, "cpu", "train")


def test_the_program_s_own_devices_and_threads_are_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    of_program = _facts(built(tmp_path), Instructions(), RERUN, "", [], {"resumes": True})
    assert of_program.variables == {"OMP_NUM_THREADS": str(torch.get_num_threads()), "CUDA_VISIBLE_DEVICES": "1"}


def test_the_class_of_an_optimizer_that_a_trainer_was_given_is_the_programs_own(tmp_path: Path) -> None:
    for parts, own in (({}, ""), ({"optimizer_cls_and_kwargs": (torch.optim.Rprop, {"lr": 0.1})}, "Rprop")):
        trainer = built(tmp_path, **parts)
        workload = _facts(trainer, Instructions(), RERUN, "", [], {"resumes": True}).workload
        assert workload["own_optimizer"] == own


def test_a_new_start_with_the_answer_gets_what_no_field_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = makers.with_setup(found(8), switches={"enable_flash_sdp": False})
    monkeypatch.setattr(TuningResult, "load", lambda _: answer)
    train_with_answer(built(tmp_path), Instructions())
    assert not torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(True)


def result(low: float | None = 1.2, changes: bool = True, fits: bool = True, micro: int = 4, **values: Any) -> Any:
    """As much of a result as decides. fits: the user's own settings. values: of the answer."""

    def trial(**values: Any) -> Any:
        return SimpleNamespace(configuration=SimpleNamespace(values=values), lacked_memory=not fits)

    return SimpleNamespace(
        changes_settings=changes,
        speedup=low and SimpleNamespace(low=low),
        best_trial=None,
        numerics=None,
        best=trial(micro_batch_size=micro, **values),
        baseline=trial(micro_batch_size=2),
    )


@pytest.mark.parametrize(
    ("answer", "resumes", "text"),
    [
        (result(), False, ""),
        (result(low=1.0), False, "Nothing is shown to be faster."),
        (result(low=None), False, "Nothing is shown to be faster."),
        (result(low=None, fits=False), False, ""),
        (result(low=1.0, fits=False), False, ""),
        (result(changes=False), False, "Nothing is shown to be faster."),
        (result(), True, "continues a checkpoint, and the answer changes the micro-batch size."),
        (result(micro=2, optimizer="sgd"), True, "continues a checkpoint, and the answer changes the optimizer."),
        (result(micro=2), True, ""),
    ],
)
def test_a_training_takes_the_answer_only_if_it_is_shown_to_be_faster(answer: Any, resumes: bool, text: str) -> None:
    reason = why_kept(answer, resumes)
    assert text in reason
    assert bool(reason) == bool(text)


def test_a_checkpoint_keeps_its_settings_if_the_command_is_started_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.commands.search.search", lambda *_, **__: result())
    wanted = Instructions(trains=True, quiet=True)
    ending = start._rerun(Command(["true"], dict(os.environ)), facts(resumes=True), wanted, tmp_path)
    assert "continues a checkpoint" in ending.lines[0]


def test_a_training_that_was_requested_and_cannot_be_started_is_a_failure() -> None:
    answer: Any = SimpleNamespace(setup=SimpleNamespace(processes=2))
    ending = start._trained(Command(["sh", "train.sh"], {}), facts(), answer, "the answer starts so: torchrun")
    assert (ending.code, ending.lines) == (1, ("Nothing was trained: the answer starts so: torchrun.",))


@pytest.mark.parametrize(("call", "text"), [(1, "never called Trainer.train."), (3, "called Trainer.train 3 times.")])
def test_a_training_that_was_not_reached_is_named(tmp_path: Path, call: int, text: str) -> None:
    (tmp_path / BUILT).write_text("Slow")
    with pytest.raises(InvalidRequest, match=f"train.py built a Slow and .*{text}"):
        _without_training(["python", "train.py"], tmp_path, 0, Instructions(call=call))
    wanted = Instructions(call=call, trains=True)
    assert text in _without_training(["python", "train.py"], tmp_path, 0, wanted).lines[0]
