"""Obstacles on the way into a program, each with a program that has it."""

import sys
import threading
from pathlib import Path

import pytest
from transformers import TrainerCallback

from autotune.commands.tune import sendable
from autotune.core.note import NoteKind
from tests.commands.run.programs import FLAGS, ONLY, SIZES, autotune_run, program, started
from tests.trainers import built


def test_a_sitecustomize_that_is_there_runs_too(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins\nbuiltins.OTHER = 'chained'\n")
    (tmp_path / "plain.py").write_text("import sitecustomize\nprint(OTHER, sitecustomize.__file__)\n")
    command = [sys.executable, "plain.py"]
    ended = autotune_run(tmp_path, command=command, flags=(), PYTHONPATH=f"{other}:{Path.cwd()}")
    assert f"chained {other}/sitecustomize.py" in ended.stdout


@pytest.mark.parametrize("switch", ["-I", "-E"])
def test_a_python_that_ignores_the_path_is_named(tmp_path: Path, switch: str) -> None:
    (tmp_path / "plain.py").write_text("print('ran')\n")
    ended = autotune_run(tmp_path, command=[sys.executable, switch, "plain.py"], flags=())
    assert ended.returncode == 2
    assert "ran" in ended.stdout
    assert "python -I, -E and -S, sudo" in ended.stderr
    assert "autotune.tune(trainer)" in ended.stderr


@pytest.mark.nightly
def test_a_trial_of_a_search_for_hyperparameters_is_named(tmp_path: Path) -> None:
    program(tmp_path, trained="trainer.train(trial={'learning_rate': 1e-3})")
    ended = autotune_run(tmp_path)
    assert ended.returncode == 2
    assert "a trial of hyperparameter_search" in ended.stderr
    assert "Set per_device_train_batch_size outside of it" in ended.stderr


class Held(TrainerCallback):
    """Cannot be sent."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_what_trials_would_train_otherwise_is_known_before(tmp_path: Path) -> None:
    with sendable(built(tmp_path), {}) as (payload, _, _):
        assert not payload.differs
    with sendable(built(tmp_path, callbacks=[Held()]), {}) as (payload, _, _):
        (note,) = payload.differs
        assert (note.kind, "Held" in note.detail) == (NoteKind.CALLBACKS_LEFT_OUT, True)


@pytest.mark.nightly
def test_a_class_that_is_taken_late_is_reached_at_its_second_call_below_a_shell_and_no_code_runs_after_it(
    tmp_path: Path,
) -> None:
    late = """
import atexit, importlib
atexit.register(print, "at exit")
Base = getattr(importlib.import_module("transformers"), "Trainer")
Base.train(trainer)
print("first")
try:
    Base.train(trainer)
except BaseException as error:
    print("caught", error)
finally:
    print("finally")
"""
    program(tmp_path, before="import transformers as t", trained=late)
    (tmp_path / "both.sh").write_text(f"{sys.executable} -m train \"$@\"\necho 'next command'\n")
    ended = autotune_run(tmp_path, *ONLY, "--call", "2", command=["sh", "both.sh"])
    assert ended.returncode == 0, ended.stderr
    lines = (ended.stdout + ended.stderr).splitlines()
    assert "first" in lines
    assert not {"at exit", "caught", "finally", "next command"} & {*lines}


def test_a_program_that_ends_before_it_trains_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("import os\nprint(os.environ['WANDB_MODE'])\nraise SystemExit(5)\n")
    ended = autotune_run(tmp_path, command=[sys.executable, "failing.py"], flags=())
    assert ended.returncode == 5
    assert "ended with exit code 5 before it trained" in ended.stderr
    assert ended.stdout == "disabled\n", "no tracker where nothing is trained"


def test_a_script_without_a_first_line_for_the_kernel_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "go").write_text("echo ran\n")
    (tmp_path / "go").chmod(0o755)
    ended = autotune_run(tmp_path, command=["./go"], flags=())
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "./go cannot be started: Exec format error. Write: sh ./go" in ended.stderr


def test_a_command_that_sets_the_path_is_not_started(tmp_path: Path) -> None:
    command = ["env", "PYTHONPATH=src", "sh", "-c", "echo ran"]
    ended = autotune_run(tmp_path, command=command, flags=())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Set it in front of autotune: PYTHONPATH=... autotune run" in ended.stderr


def test_a_command_that_is_none_is_one_line(tmp_path: Path) -> None:
    program(tmp_path)
    ended = started(tmp_path, [sys.executable, "-m", "autotune", "run", "train.py", *SIZES, *FLAGS])
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "Write: python train.py" in ended.stderr
    ended = started(tmp_path, [sys.executable, "-m", "autotune", "run", "A=1", "python", "train.py"])
    assert "A=1 cannot be started: No such file or directory. Write: env A=1" in ended.stderr
