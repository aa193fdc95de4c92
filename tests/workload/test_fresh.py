"""A Trainer and a fresh one of its parts: nothing differs if nothing was changed, and what was changed is named."""

import re
import threading
import time
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer, DataCollatorWithPadding, Trainer

from autotune.workload.fresh import check_fresh, set_on_arguments
from tests.makers import refusal_of
from tests.trainers import Counting, Keyed, Numbers, Scaled, Told, bert, built


def nothing_in(trainer: Any) -> None:
    check_fresh(trainer)
    assert set_on_arguments(trainer.args) == {}


def refused(trainer: Any, text: str) -> None:
    assert re.search(text, refusal_of(lambda: check_fresh(trainer)))


OTHER = {"bf16": True, "label_smoothing_factor": 0.1, "torch_compile": False, "eval_strategy": "steps"}


@pytest.mark.parametrize(("fields", "trained"), [({}, False), (OTHER, True)])
def test_nothing_was_set_later_on_a_trainer_that_was_not_touched(
    tmp_path: Path, fields: dict[str, Any], trained: bool
) -> None:
    parts = {"eval_dataset": Numbers(8), "callbacks": [Counting()], "compute_metrics": lambda _: {}}
    collator = DataCollatorWithPadding(ByT5Tokenizer())
    for kind, further in ((Trainer, {}), (Scaled, {"scale": 2.0}), (Trainer, {"data_collator": collator})):
        trainer = built(tmp_path, kind, fields={"max_steps": 2, "eval_steps": 100, **fields}, **parts, **further)
        if trained and not further.get("data_collator"):
            trainer.train()
            trainer.evaluate()
        nothing_in(trainer)


def test_a_model_init_and_a_class_of_arguments_make_no_difference(tmp_path: Path) -> None:
    args = Keyed(str(tmp_path), use_cpu=True, report_to="none", api_key="secret")
    nothing_in(Trainer(model_init=bert, args=args, train_dataset=Numbers()))


def test_the_user_s_trainer_model_and_random_numbers_are_as_they_were(tmp_path: Path) -> None:
    class Hooking(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.model.bert.register_forward_hook(lambda *_: None)
            self.label_names = [*self.label_names, "more"]

    trainer = built(tmp_path, Hooking)
    before, fields = dict(vars(trainer)), dict(vars(trainer.args))
    hooks = len(trainer.model.bert._forward_hooks)
    nothing_in(trainer)
    assert vars(trainer) == before
    assert vars(trainer.args) == fields
    assert len(trainer.model.bert._forward_hooks) == hooks
    assert trainer.accelerator.state.mixed_precision == "no"
    assert torch.nn.Module.to.__qualname__ == "Module.to"


def test_what_was_set_is_named(tmp_path: Path) -> None:
    for name, value in (
        ("compute_loss", MethodType(Trainer.compute_loss, built(tmp_path))),
        ("label_names", ["labels", "extra"]),
        ("notes", {"a": [torch.ones(2)]}),
        ("_signature_columns", ["input_ids"]),
    ):
        trainer = built(tmp_path)
        setattr(trainer, name, value)
        refused(trainer, f"^{name} is not as in a fresh Trainer of the same parts")
    trainer = built(tmp_path)
    trainer.args.scale = 2
    trainer.args.learning_rate = 1.0  # a field, which is read for itself
    check_fresh(trainer)
    assert set_on_arguments(trainer.args) == {"scale": 2}


def test_what_is_another_in_each_trainer_is_no_difference(tmp_path: Path) -> None:
    class Timed(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.begun, self.random, self.lock = time.time(), torch.rand(3), threading.Lock()

    nothing_in(built(tmp_path, Timed))
    trainer = built(tmp_path, Timed)
    trainer.notes = 1
    refused(trainer, "^notes is not")


def test_a_constructor_that_cannot_be_called_again_is_refused_before_anything_is_searched(tmp_path: Path) -> None:
    class Once(Trainer):
        count = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            type(self).count += 1
            if type(self).count > 1:
                raise RuntimeError("there is\none already")
            super().__init__(*args, **kwargs)

    refused(built(tmp_path, Once), r"^A fresh Once cannot be built .*: RuntimeError: there is\.")


def test_callbacks_that_the_class_does_not_make_are_returned(tmp_path: Path) -> None:
    mine = Counting()
    assert check_fresh(built(tmp_path, Scaled, callbacks=[mine])) == [mine]
    trainer = built(tmp_path, Scaled, callbacks=[mine])
    trainer.remove_callback(Told)
    refused(trainer, "callback Told is not as .*, and it was removed")
