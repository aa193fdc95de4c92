"""What a caller's objects become on their way: names for the model's own, an optimizer made anew, and a plain refusal."""

import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from autotune.core.errors import InvalidRequest
from autotune.core.request import tuning_request
from autotune.workload.model.pickling import can_be_sent, is_importable, received, sent
from autotune.workload.model.sent_model import Prebuilt
from autotune.workload.model.user_objects import UserObjects, arguments_class, user_workload


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.head(self.body(x)).squeeze(-1) - labels).square().mean()}


class Collator:
    """As transformers' for sequences to sequences: it holds the model."""

    def __init__(self, model: Any) -> None:
        self.model = model


def trainer_of(model: Net, tmp_path: Any, **parts: Any) -> Trainer:
    args = TrainingArguments(output_dir=str(tmp_path / "nowhere"), use_cpu=True, report_to="none")
    return Trainer(model=model, args=args, train_dataset=[1], **parts)


def test_a_part_that_holds_the_model_gets_the_child_s_own(tmp_path: Any) -> None:
    model = Net()
    trainer = trainer_of(model, tmp_path)
    objects = {"model_init": Net, "data_collator": Collator(model), "train_dataset": [model.head]}
    user = UserObjects.opened(sent(objects, trainer))
    built = user.model()
    assert user.data_collator.model is built
    assert user.train_dataset[0] is built.head
    assert built is not model


def test_an_optimizer_is_sent_over_the_child_s_parameters(tmp_path: Any) -> None:
    model = Net()
    groups = [{"params": model.body.parameters(), "lr": 1e-5}, {"params": model.head.parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.3, betas=(0.8, 0.9))
    model(torch.ones(2, 4), torch.ones(2))["loss"].backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    objects = {"model_init": Net, "trainer_arguments": {"optimizers": (optimizer, scheduler)}}
    user = UserObjects.opened(sent(objects, trainer_of(model, tmp_path)))
    made, schedule = user.trainer_arguments["optimizers"]
    built = user.model()
    assert type(made) is torch.optim.AdamW
    assert [group["lr"] for group in made.param_groups] == [1e-5, 1e-2]
    assert {group["weight_decay"] for group in made.param_groups} == {0.3}
    assert {group["betas"] for group in made.param_groups} == {(0.8, 0.9)}
    assert made.param_groups[1]["params"][0] is built.head.weight
    assert set(made.state[built.head.weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert schedule.optimizer is made
    assert schedule.step_size == 7


def test_a_part_that_holds_the_arguments_gets_the_child_s_own_and_one_that_holds_the_trainer_is_refused(
    tmp_path: Any,
) -> None:
    trainer = trainer_of(Net(), tmp_path)
    assert can_be_sent([trainer.args, trainer.model], trainer) == ""
    pickled = sent({"model_init": Net, "data_collator": [trainer.args]}, trainer)
    assert b"nowhere" not in pickled, "nothing private of the arguments is sent along"
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    assert UserObjects.opened(pickled, arguments).data_collator == [arguments]
    for part in (trainer, trainer.compute_loss):
        with pytest.raises(InvalidRequest, match="the Trainer itself"):
            sent({"model_init": Net, "data_collator": [part]}, trainer)


def test_what_cannot_be_sent_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    with path.open() as file, contextlib.closing(sqlite3.connect(":memory:")) as connection:

        def collate(rows: Any) -> Any:
            return file.read(), rows

        for objects, reason in (
            ({"data_collator": collate}, "The data_collator cannot be sent to another process: it holds an open file"),
            ({"train_dataset": [connection]}, "The train_dataset cannot .*: cannot pickle 'sqlite3.Connection' object"),
            ({"on_arguments": {"lock": threading.Lock()}}, "What was set on the arguments .*'_thread.lock' object"),
            ({"model_init": Prebuilt(threading.Lock())}, "The model cannot be sent"),
        ):
            with pytest.raises(InvalidRequest, match=reason) as caught:
                sent({"model_init": Net, **objects}, trainer_of(Net(), tmp_path))
            assert "at its first use" in str(caught.value)
            assert "\n" not in str(caught.value)


def test_the_class_of_arguments_is_known_before_anything_else_is_opened() -> None:
    class Own(TrainingArguments):
        pass

    objects = sent({"arguments_class": Own, "user_fields": {"one": 1}, "model_init": Net, "train_dataset": [1]})
    assert received(io.BytesIO(objects)).keys() == {"arguments_class", "user_fields"}
    kind, fields = arguments_class(objects)
    assert kind.__name__ == "Own"
    assert fields == {"one": 1}
    assert arguments_class(b"") == (TrainingArguments, {})


def test_a_class_with_other_defaults_is_told_the_usual_ones() -> None:
    trl = pytest.importorskip("trl")
    _, fields = arguments_class(sent({"arguments_class": trl.SFTConfig, "user_fields": {"max_length": 7}}))
    assert fields["bf16"] is False
    assert fields["learning_rate"] == 5e-5
    assert fields["max_length"] == 7


class Unopened:
    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise RuntimeError("cannot\nbe opened")


def test_what_cannot_be_opened_in_a_child_is_one_line() -> None:
    pickled = sent({"model_init": Net, "train_dataset": Unopened()})
    with pytest.raises(InvalidRequest, match=r"cannot be opened in another process: RuntimeError: cannot\.") as caught:
        user_workload(tuning_request("mine", 8), pickled)
    assert "\n" not in str(caught.value)


# Modules of scripts ---------------------------------------------------------------------------------------------------

LIBRARY = """
def greeting():
    return WORD

WORD = {word!r}

class Data:
    def __getitem__(self, number):
        return greeting(), number
"""
SEND = """
import os, runpy, sys
from pathlib import Path
from autotune.workload.model.pickling import sent

def give(name, *objects):
    Path(os.environ["SENT"], name).write_bytes(sent({"train_dataset": objects}))
"""
RECEIVE = """
import io, json, sys, wave
from pathlib import Path
from autotune.workload.model.pickling import received

sys.path[:] = json.loads(sys.argv[2])
stream = io.BytesIO(Path(sys.argv[1]).read_bytes())
received(stream), received(stream)
print([one[0] if hasattr(one, "__getitem__") else one() for one in received(stream)["train_dataset"]])
"""
SCRIPTS = {
    "a helper beside the script": (
        "from helper import Data, greeting\nimport helper\ngive('objects', Data(), greeting, lambda: helper.greeting())",
        [("here", 0), "here", "here"],
    ),
    "a helper with the name of a module of Python's own": (
        "from wave import Data, greeting\ngive('objects', Data(), greeting)",
        [("waved", 0), "waved"],
    ),
    "a helper that another folder hides by now": (
        "sys.path.insert(0, 'apart')\nfrom twice import Data\nsys.path.insert(0, 'later')\ngive('objects', Data())",
        [("first", 0)],
    ),
    "a script that another one runs": (
        "Path('inner.py').write_text(Path('helper.py').read_text() + '\\nGIVE(\"objects\", Data())\\n')\n"
        "runpy.run_path('inner.py', init_globals={'GIVE': give})",
        [("here", 0)],
    ),
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_what_a_script_s_modules_define_is_the_same_where_probes_run(what: str, tmp_path: Path) -> None:
    code, expected = SCRIPTS[what]
    folder = tmp_path / "project"
    for name, word in (
        ("helper", "here"),
        ("wave", "waved"),
        ("apart/twice", "first"),
        ("later/twice", "second"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(LIBRARY.format(word=word))
    end = "\nimport json\nPath(os.environ['SENT'], 'path').write_text(json.dumps(sys.path))\n"
    (folder / "train.py").write_text(SEND + code + end)
    environment = os.environ | {"SENT": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    how: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 300}
    given = subprocess.run([sys.executable, str(folder / "train.py")], check=False, **how)
    assert given.returncode == 0, given.stderr
    receive = [sys.executable, "-P", "-c", RECEIVE, str(tmp_path / "objects"), (tmp_path / "path").read_text()]
    taken = subprocess.run(receive, check=False, **how)
    assert taken.stdout.strip() == repr(expected), taken.stderr


def test_what_is_installed_is_sent_by_its_name() -> None:
    assert len(sent({"train_dataset": (Trainer, torch.nn.Linear, pytest.fixture, json.dumps)})) < 1000
    assert all(map(is_importable, ("json", "os", "torch.nn", "autotune.workload.model.pickling", "itertools")))
