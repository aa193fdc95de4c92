"""A Trainer and one that is built again: nothing differs if nothing was changed, and what was changed is named."""

from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

from autotune.core.errors import InvalidRequest
from autotune.workload.twin import SetLater, set_later
from tests.trainers import Counting, Keyed, Numbers, Scaled, bert, built


def nothing_in(trainer: Any) -> None:
    later = set_later(trainer)
    assert (dict(later.attributes), dict(later.of_arguments)) == ({}, {})


OTHER = {"bf16": True, "label_smoothing_factor": 0.1, "torch_compile": False, "eval_strategy": "steps"}


@pytest.mark.parametrize(
    ("fields", "trained"),
    [
        ({}, False),
        pytest.param({}, True, marks=pytest.mark.nightly),
        pytest.param(OTHER, False, marks=pytest.mark.nightly),
        (OTHER, True),
    ],
)
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
    trainer = built(tmp_path)
    trainer.compute_loss = MethodType(Trainer.compute_loss, trainer)
    trainer.label_names = ["labels", "extra"]
    trainer.notes = {"a": [torch.ones(2)]}
    trainer._signature_columns = ["input_ids"]
    trainer.args.scale = 2
    trainer.args.learning_rate = 1.0  # a field, which is read for itself
    later = set_later(trainer)
    assert set(later.attributes) == {"compute_loss", "label_names", "notes", "_signature_columns"}
    assert later.of_arguments == {"scale": 2}
    new = built(tmp_path)
    there = later.for_trainer(new, trainer)
    there.give(new)
    assert new.compute_loss.__self__ is new
    assert new.notes is trainer.notes
    assert set(set_later(new).attributes) == set(later.attributes)


def test_a_constructor_that_cannot_be_called_again_is_refused_before_anything_is_searched(tmp_path: Path) -> None:
    class Once(Trainer):
        count = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            type(self).count += 1
            if type(self).count > 1:
                raise RuntimeError("there is\none already")
            super().__init__(*args, **kwargs)

    with pytest.raises(InvalidRequest, match=r"A new Once cannot be built .*: RuntimeError: there is\.") as caught:
        set_later(built(tmp_path, Once))
    assert "\n" not in str(caught.value)


def test_a_model_that_the_constructor_wraps_is_wrapped_once(tmp_path: Path) -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any, labels: Any) -> Any:
            return self.inner(input_ids=input_ids, labels=labels)

    class Wrapping(Trainer):
        def __init__(self, model: Any, **kwargs: Any) -> None:
            super().__init__(Wrapped(model), **kwargs)

    trainer = built(tmp_path, Wrapping)
    later = set_later(trainer)
    assert dict(later.attributes) == {"model": trainer.model}
    new = built(tmp_path, Wrapping, model=trainer.model)
    later.give(new)
    assert new.model is new.model_wrapped is trainer.model


def test_nothing_is_given_by_default() -> None:
    assert SetLater() == SetLater({}, {})


def test_arguments_that_were_made_since_do_not_matter(tmp_path: Path) -> None:
    trainer = built(tmp_path, fields={"bf16": True})
    TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    built(tmp_path)
    nothing_in(trainer)
