"""The command line as people meet it: help, exit codes, one clear line for what cannot be done."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.request import tuning_request
from tests import makers
from tests.hurry import hurry

SEARCH = ["search", "gpt2-mini", "--device", "cpu", "--sequence-length", "32", "--n-trials", "1"]
SMALL = ["--global-batch-size", "8", "--space", "quick", "--only", "checkpointing=none", "--only", "precision=fp32"]


def run(arguments: list[str], folder: Path):
    """(exit code, standard output, standard error) of a command run in that folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        os.chdir(before)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


WRONG = {
    "a global batch of zero": (["--global-batch-size", "0"], "whole number from 1, not 0"),
    "a negative global batch": (["--global-batch-size", "-4"], "whole number from 1, not -4"),
    "a global batch in words": (["--global-batch-size", "many"], "whole number, not 'many'"),
    "a huge global batch": (["--global-batch-size", "99999999"], "Check for a digit too many"),
    "an unknown task": (["--task", "casual-lm"], "Did you mean 'causal-lm'?"),
    "an unknown space": (["--space", "quik"], "Did you mean 'quick'?"),
    "an unknown lever": (["--fix", "precison=bf16"], "Did you mean 'precision'?"),
    "an unknown value": (["--fix", "precision=bf61"], "Did you mean 'bf16'?"),
    "no value at all": (["--fix", "precision"], "is no NAME=VALUE"),
    "fix against only": (["--fix", "precision=bf16", "--only", "precision=fp32"], "both speak of precision"),
    "a study name with a slash": (["--study-name", "a/b"], "cannot be a study's name"),
    "a study name of dots": (["--study-name", ".."], "cannot be a study's name"),
    "a study name that is too long": (["--study-name", "x" * 300], "300 bytes long"),
    "headroom of everything": (["--headroom", "100%"], "below 100%"),
    "a malformed memory limit": (["--memory-limit", "600XB"], "is no size"),
    "a malformed timeout": (["--timeout", "soon"], "is no duration"),
    "an unknown sampler": (["--sampler", "tpee"], "Did you mean 'tpe'?"),
    "an unknown objective": (["--objective", "speed"], "There is no objective 'speed'"),
    "an unknown logger": (["--report-to", "tensorbord"], "Did you mean 'tensorboard'?"),
    "a logger beside none": (["--report-to", "none,wandb"], "says none and wandb"),
    "an unknown device": (["--device", "gpu"], "Use auto, cpu, cuda or cuda:0"),
    "no trials": (["--n-trials", "0"], "whole number from 1"),
    "a missing training-args file": (["--args", "none.json"], "cannot be read"),
    "a broken training-args file": (["--args", "broken.json"], "no valid JSON or YAML"),
    "sizes that contradict": (["--args", "contra.json"], "4 x 4 = 16 samples a step"),
    "a report folder that is a file": (["--output-dir", "afile"], "is a file"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_gets_one_clear_line_and_exit_code_2(what: str, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"learning_rate": ')
    (tmp_path / "contra.json").write_text('{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}')
    (tmp_path / "afile").write_text("")
    before = set(tmp_path.iterdir())
    arguments, expected = WRONG[what]
    given = [*SEARCH, "--global-batch-size", "8", *arguments]
    code, out, err = run(given, tmp_path)
    assert code == 2
    assert expected in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert set(tmp_path.iterdir()) == before


LATER = {
    "an unknown model": (["search", "gpt2-minii", "--global-batch-size", "8"], "Did you mean 'gpt2-mini'?"),
    "a limit above the device": ([*SEARCH, "--global-batch-size", "8", "--memory-limit", "900TiB"], "lies above the"),
    "a dataset without the column": (
        [*SEARCH, "--global-batch-size", "2", "--dataset", "data.csv", "--text-column", "text"],
        "has no column 'text'",
    ),
    "a dataset smaller than a batch": (
        [*SEARCH, "--global-batch-size", "8", "--dataset", "small.txt"],
        "smaller than one batch of 8",
    ),
    "an unknown training argument": (
        [*SEARCH, "--global-batch-size", "8", "--args", "unknown.json"],
        "Did you mean 'learning_rate'?",
    ),
    "what the device cannot do": (
        [*SEARCH, "--global-batch-size", "8", "--fix", "precision=fp16"],
        "silently trains in fp32",
    ),
}


@pytest.mark.parametrize("what", LATER)
def test_what_only_a_look_at_model_data_or_device_shows_is_said_as_clearly(what: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "small.txt").write_text("hello there\nworld of text\n")
    (tmp_path / "unknown.json").write_text('{"learning_rat": 1}')
    before = set(tmp_path.iterdir())
    arguments, expected = LATER[what]
    code, out, err = run([*arguments, "--device", "cpu"], tmp_path)
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert set(tmp_path.iterdir()) == before


def test_cuda_where_there_is_none_is_a_usage_error(tmp_path: Path) -> None:
    from autotune.probe.device import visible_cards

    if visible_cards():
        pytest.skip("this machine has a GPU")
    code, _, err = run([*SEARCH, "--global-batch-size", "8", "--device", "cuda"], tmp_path)
    assert code == 2
    assert "no CUDA GPU is visible here" in err


def test_a_limit_below_what_the_model_needs_exits_with_3_and_the_figure(tmp_path: Path) -> None:
    code, _, err = run([*SEARCH, "--global-batch-size", "8", "--memory-limit", "20MiB"], tmp_path)
    assert code == 3
    assert "for its weights and gradients alone" in err


def test_json_is_one_object_on_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    code, out, _ = run([*SEARCH, *SMALL, "--json", "--study-name", "first"], tmp_path)
    assert code == 0
    told = json.loads(out)
    assert told["best"]["micro_batch_size"] * told["best"]["gradient_accumulation_steps"] == 8
    assert told["training_arguments"]["use_cpu"] is True
    assert told["speedup"] is not None
    assert told["folder"] == "reports/first"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A folder with a study of three trials, `reports/first`."""
    makers.result(request=tuning_request("gpt2-mini", 48, device="cpu", study_name="first")).save(
        tmp_path / "reports" / "first"
    )
    return tmp_path


def test_studies_and_report_tell_of_a_study(reports: Path) -> None:
    code, out, _ = run(["studies"], reports)
    assert code == 0
    assert out.startswith("first: 3 trial(s).")
    code, out, _ = run(["report", "first"], reports)
    assert code == 0
    assert "## What to paste" in out
    assert out.strip() == (reports / "reports" / "first" / "summary.md").read_text().strip()
    code, _, err = run(["report", "nowhere"], reports)
    assert code == 2
    assert "There is no study in reports/nowhere" in err


def test_an_old_study_is_told_to_a_logger_afterwards_and_only_once(tmp_path: Path) -> None:
    made = makers.result()
    made.save(tmp_path / "reports" / "old")
    for _ in range(2):
        code, out, _ = run(["report", "old", "--report-to", "tensorboard"], tmp_path)
        assert code == 0
        assert out == (tmp_path / "reports" / "old" / "summary.md").read_text() + "\n"
    told = json.loads((tmp_path / "reports" / "old" / "loggers.json").read_text())
    assert told["tensorboard"]["last"] == 2
    assert len(list((tmp_path / "reports" / "old" / "tensorboard").glob("trial-*/events*"))) == 3


def test_a_logger_that_fails_leaves_the_report_and_exit_code_1(tmp_path: Path) -> None:
    makers.result().save(tmp_path / "reports" / "old")
    (tmp_path / "reports" / "old" / "tensorboard").write_text("in the way")
    code, out, err = run(["report", "old", "--report-to", "tensorboard"], tmp_path)
    assert code == 1
    assert "4.0x faster" in out
    assert err.startswith("Warning: the logger tensorboard was given up")


def test_a_study_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reports" / "first").mkdir(parents=True)
    with (tmp_path / "reports" / "first" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = run([*SEARCH, *SMALL, "--study-name", "first"], tmp_path)
    assert code == 1
    assert "Another process works on the study" in err


def test_spaces_are_listed_with_their_levers(tmp_path: Path) -> None:
    code, out, _ = run(["spaces"], tmp_path)
    assert code == 0
    assert "default" in out
    assert "checkpointing" in out


def test_doctor_says_what_works_here_and_why_the_rest_does_not(tmp_path: Path) -> None:
    code, out, _ = run(["doctor", "--device", "cpu"], tmp_path)
    assert code == 0
    assert "silently trains in fp32" in out
    assert "adamw_torch_fused" in out
    assert "torch 2." in out
