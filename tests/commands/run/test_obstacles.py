"""Obstacles on the way into a program, each with a program that has it."""

import sys
from pathlib import Path

import pytest

from tests.commands.run.programs import FLAGS, ONLY, SIZES, autotune_run, program, started

WAY = "print('way')\n"


def dry(folder: Path, *options: str, **more: object) -> str:
    """What a dry run printed and said."""
    ended = autotune_run(folder, "--dry-run", *options, **more)  # type: ignore[arg-type]
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_children_of_the_training_and_what_it_starts_know_nothing_of_it(tmp_path: Path) -> None:
    shows = "import os, subprocess\nprint('left', 'AUTOTUNE_RUN' in os.environ, 'startup' in os.environ['PYTHONPATH'])"
    program(tmp_path, trained=f"trainer.train()\n{shows}")
    ended = autotune_run(tmp_path, *ONLY, "--then", "original")
    assert "left False False" in ended.stdout, ended.stderr


def test_a_sitecustomize_that_is_there_runs_too(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins\nbuiltins.OTHER = 'chained'\n")
    (tmp_path / "plain.py").write_text("import sitecustomize\nprint(OTHER, sitecustomize.__file__)\n")
    command = [sys.executable, "plain.py"]
    ended = autotune_run(tmp_path, "--then", "original", command=command, flags=(), PYTHONPATH=f"{other}:{Path.cwd()}")
    assert f"chained {other}/sitecustomize.py" in ended.stdout


@pytest.mark.parametrize("switch", ["-I", "-E"])
def test_a_python_that_ignores_the_path_is_named(tmp_path: Path, switch: str) -> None:
    (tmp_path / "plain.py").write_text("print('ran')\n")
    ended = autotune_run(tmp_path, command=[sys.executable, switch, "plain.py"], flags=())
    assert ended.returncode == 2
    assert "ran" in ended.stdout
    assert "python -I, -E and -S, sudo" in ended.stderr
    assert "autotune.tune(trainer)" in ended.stderr


def test_the_call_that_is_meant_is_tuned_and_the_last_too_few_are_named(tmp_path: Path) -> None:
    program(tmp_path, trained="trainer.train()\nprint('first')\ntrainer.train()\nprint('second')")
    text = dry(tmp_path, "--call", "2")
    assert "first" in text
    assert "second" not in text
    assert "Slow, call 2 of train()" in text
    ended = autotune_run(tmp_path, "--dry-run", "--call", "3")
    assert (ended.returncode, "never called Trainer.train 3 times" in ended.stderr) == (2, True)


def test_a_train_of_its_own_runs_once(tmp_path: Path) -> None:
    own = """
class Own(Slow):
    def train(self, *args, **kwargs):
        print("own body")
        return super().train(*args, **kwargs)

trainer = Own(model=trainer.model, args=args, train_dataset=Sums())
trainer.train()
"""
    program(tmp_path, trained=own)
    ended = autotune_run(tmp_path, *ONLY, "--then", "train")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("own body") == 1


def test_a_training_loop_of_its_own_is_named(tmp_path: Path) -> None:
    program(tmp_path, trained="type(trainer).train = lambda self: print('own loop')\ntrainer.train()")
    ended = autotune_run(tmp_path)
    assert ended.returncode == 2
    assert "built a Slow and never called Trainer.train" in ended.stderr


@pytest.mark.parametrize(
    ("code", "way"),
    [
        ("old = trainer.compute_loss\ntrainer.compute_loss = lambda *a, **k: 2 * old(*a, **k)", "sent"),
        ("trainer.label_names = ['labels', 'more']", "sent"),
        ("import threading\ntrainer.lock = threading.Lock()", "again"),
        ("trainer.rows = (row for row in [1])", "again"),
        ("import transformers.trainer as t\nt.Trainer.compute_loss = lambda *a, **k: None", "again"),
        (
            "class Odd(Trainer):\n    def __init__(self, net, cfg, rows):\n"
            "        super().__init__(model=net, args=cfg, train_dataset=rows)\n"
            "trainer = Odd(trainer.model, args, Sums())",
            "again",
        ),
        (
            "class Unkept(Slow):\n    def __init__(self, *args, scale=1.0, **kwargs):\n"
            "        super().__init__(*args, **kwargs)\n"
            "trainer = Unkept(model=trainer.model, args=args, train_dataset=Sums(), scale=2.0)",
            "again",
        ),
    ],
    ids=["a patched method", "an attribute", "a lock", "a generator", "a patched class", "odd names", "not kept"],
)
def test_what_cannot_be_sent_as_it_is_is_probed_by_the_command(tmp_path: Path, code: str, way: str) -> None:
    program(tmp_path, trained=f"{code}\ntrainer.train()")
    assert f"(--by {way})" in dry(tmp_path)


def test_no_code_of_the_program_runs_after_the_answer(tmp_path: Path) -> None:
    after = """
import atexit
atexit.register(print, "at exit")
try:
    trainer.train()
except BaseException as error:
    print("caught", error)
finally:
    print("finally")
"""
    program(tmp_path, trained=after)
    (tmp_path / "both.sh").write_text(f"{sys.executable} train.py \"$@\"\necho 'next command'\n")
    for command in ([sys.executable, "train.py"], ["sh", "both.sh"]):
        text = dry(tmp_path, command=command)
        assert not {"at exit", "caught", "finally", "next command"} & {*text.splitlines()}


def test_a_program_in_which_the_class_is_taken_late_and_under_another_name_is_reached(tmp_path: Path) -> None:
    late = "import importlib\nBase = getattr(importlib.import_module('transformers'), 'Trainer')\n"
    program(tmp_path, before="import transformers as t", trained=f"{late}Base.train(trainer)")
    assert "Slow, call 1" in dry(tmp_path, command=[sys.executable, "-m", "train"])


def test_the_exit_code_and_the_streams_of_the_program_pass_through(tmp_path: Path) -> None:
    program(tmp_path, before="print(sys.stdin.read())", trained="trainer.train()\nsys.exit(7)")
    (tmp_path / "failing.py").write_text("raise SystemExit(5)\n")
    ended = autotune_run(tmp_path, command=[sys.executable, "failing.py"], flags=())
    assert ended.returncode == 5
    assert "ended with exit code 5 before it trained" in ended.stderr
    ended = autotune_run(tmp_path, *ONLY, "--then", "original")
    assert ended.returncode == 7, ended.stderr
    assert "as fast as your settings" in ended.stdout


def test_a_command_that_is_none_is_one_line(tmp_path: Path) -> None:
    program(tmp_path)
    ended = started(tmp_path, [sys.executable, "-m", "autotune", "run", "train.py", *SIZES, *FLAGS])
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "Write: python train.py" in ended.stderr
