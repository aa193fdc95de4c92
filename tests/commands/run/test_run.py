"""`autotune run` of real programs: searched for unchanged, trained with the answer, measured by their own command."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.commands.run.programs import (
    FLAGS,
    ONLY,
    SIZES,
    TRAINED,
    answered,
    autotune_run,
    has_cores,
    measurements,
    program,
    started,
    stopped,
    study,
)


def weights(folder: Path) -> dict[str, Any]:
    return dict(safetensors.torch.load_file(folder / "saved" / "model.safetensors"))


OWN = """
class Own(Slow):
    def train(self, *args, **kwargs):
        print("own body")
        return super().train(*args, **kwargs)

trainer = Own(model=trainer.model, args=args, train_dataset=Sums())
"""
"""A Trainer with a `train` of its own."""

ELSEWHERE = """
import os
os.makedirs("deeper", exist_ok=True)
os.chdir("deeper")
print("read", sys.stdin.read())
"""

LEFT = """
print("left", "AUTOTUNE_RUN" in os.environ, "startup" in os.environ["PYTHONPATH"])
sys.exit(7)
"""


@pytest.mark.nightly
def test_a_killed_search_resumes_and_its_training_goes_on_as_if_the_answer_s_flags_had_been_typed(
    tmp_path: Path,
) -> None:
    program(tmp_path, before=ELSEWHERE, trained=OWN + TRAINED + LEFT)
    assert "resuming" not in stopped(tmp_path, signal.SIGKILL, 0, "--train")
    assert not (tmp_path / "deeper" / "saved").exists()
    measured = measurements(tmp_path)
    assert len(measured) == 1

    ended = autotune_run(tmp_path, *ONLY, "--train", typed="by hand")
    assert ended.returncode == 7, ended.stderr
    assert "resuming" in ended.stderr
    assert all(path.read_text() == text for path, text in measured.items()), "nothing is lost or measured again"
    assert "The built Trainer is sent to trials (--mode in-process)" in ended.stderr
    result = study(tmp_path)
    assert answered(result) == (4, 1)
    assert (result.baseline.configuration.micro_batch_size, result.request.global_batch_size) == (1, 4)
    assert f"Report    reports/{result.folder.name}/" in ended.stdout, "not where the program went"
    assert "read by hand" in ended.stdout
    assert "trained 3 4 1" in ended.stdout, "the program's own arguments follow"
    assert "left False False" in ended.stdout, "what the program starts knows nothing of autotune"
    assert ended.stdout.count("own body") == 2, "once for each call"
    assert ended.stdout.index("trained") < ended.stdout.index("as fast as your settings"), "the answer comes last"

    by_hand = tmp_path / "by hand"
    by_hand.mkdir()
    program(by_hand, trained=OWN + TRAINED)
    flags = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1", *FLAGS)
    assert started(by_hand, [sys.executable, "train.py", *flags]).returncode == 0
    ours, theirs = weights(tmp_path / "deeper"), weights(by_hand)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.nightly
def test_the_command_is_started_again_for_a_trial(tmp_path: Path) -> None:
    program(tmp_path, before='print("started")', trained=TRAINED)
    ended = autotune_run(tmp_path, *ONLY, "--mode", "rerun", "--n-trials", "1", "--quiet")
    assert ended.returncode == 0, ended.stderr
    result = study(tmp_path)
    assert answered(result) == (1, 4)
    assert result.baseline.measurement.outcome == "completed"
    (log,) = tmp_path.glob("reports/*/probes/0000/log.txt")
    assert log.read_text().count("started") == 1
    assert not (tmp_path / "saved").exists(), "a trial trains once, and nothing goes on after it"


@pytest.mark.nightly
def test_the_command_is_started_again_for_each_trial_and_with_the_answer(tmp_path: Path) -> None:
    log = 'print("started")\nLOG = open("program.log", "a")\nLOG.write("started\\n")\nLOG.flush()'
    program(tmp_path, before=log, trained="trainer.log_file = LOG\n" + "trainer.train()\ntrainer.save_model('saved')")
    ended = autotune_run(tmp_path, *ONLY, "--train")
    assert ended.returncode == 0, ended.stderr
    assert "The command is started again for each trial (--mode rerun)" in ended.stderr
    result = study(tmp_path)
    assert answered(result) == (4, 1)
    assert all(trial.measurement.outcome == "completed" for trial in result.trials)
    assert (tmp_path / "program.log").read_text().count("started") == 2, "trials write none of the program's files"
    logs = [path.read_text() for path in tmp_path.glob("reports/*/probes/**/log.txt")]
    assert all(log.count("started") == 1 for log in logs)
    assert len(logs) >= sum(len(trial.measurements) for trial in result.trials)
    by_hand = tmp_path / "by hand"
    by_hand.mkdir()
    program(by_hand, trained="trainer.train()\ntrainer.save_model('saved')")
    flags = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1", *FLAGS)
    assert started(by_hand, [sys.executable, "train.py", *flags]).returncode == 0
    ours, theirs = weights(tmp_path), weights(by_hand)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.nightly
def test_two_ranks_are_searched_for_by_their_launcher(tmp_path: Path, all_cores: None) -> None:
    if not has_cores(2):
        pytest.skip("two ranks take two cores")
    program(tmp_path, trained="trainer.train()\nprint(f'trained {args.per_device_train_batch_size}')")
    flags = (*SIZES, "--ddp_backend", "gloo", *FLAGS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    ended = autotune_run(tmp_path, *ONLY, "--train", command=command, flags=flags)
    assert ended.returncode == 0, ended.stderr
    assert "This is one of 2 ranks" in ended.stderr
    result = study(tmp_path)
    assert (result.request.global_batch_size, answered(result)) == (8, (4, 1))
    assert ended.stdout.count("trained 4") == 2
