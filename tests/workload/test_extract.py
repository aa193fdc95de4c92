"""What is read off a built Trainer, and the lines that say why one cannot be searched for."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from autotune.core.errors import InvalidRequest
from autotune.workload import extract
from tests.makers import refusal_of
from tests.trainers import Counting, Numbers, Scaled, Told, bert, built


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        yield from iter(Numbers())


def refused(trainer: Any, text: str) -> None:
    assert re.search(text, refusal_of(lambda: extract.check(trainer)))


def test_a_trainer_without_data_or_without_an_end_is_refused(tmp_path: Path) -> None:
    refused(built(tmp_path, train_dataset=None), "no train_dataset")
    trainer = built(tmp_path, fields={"max_steps": 3}, train_dataset=Endless())
    trainer.args.max_steps = -1
    refused(trainer, r"\(Endless\) has no length and the arguments no max_steps")


def test_a_micro_batch_that_the_arguments_say_too_late_is_refused(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    size = trainer.args.per_device_train_batch_size
    trainer.args.per_device_train_batch_size = 16
    refused(trainer, f"a micro-batch of {size}, which it trains")


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    trainer.model = bert().to("meta")
    refused(trainer, "on the device meta")


def test_several_ranks_or_gpus_and_a_sharded_model_are_refused(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    for facts, text in (({"world_size": 4}, "one of 4 ranks"), ({"n_gpu": 2}, "sees 2 GPUs")):
        trainer.args = SimpleNamespace(**{"world_size": 1, "n_gpu": 1, "max_steps": 1, **facts})
        refused(trainer, text)
    trainer.is_fsdp_enabled = True
    refused(trainer, "DeepSpeed or FSDP")


def test_arguments_of_the_constructor_are_found_under_their_names(tmp_path: Path) -> None:
    def loss(*_: Any, **__: Any) -> None: ...

    found = extract.further_arguments(built(tmp_path, Scaled, scale=2.0, compute_loss_func=loss))
    assert found["scale"] == 2.0
    assert found["compute_loss_func"] is loss
    assert extract.further_arguments(built(tmp_path)) == {}


def test_an_argument_without_a_default_that_the_trainer_does_not_keep_is_named(tmp_path: Path) -> None:
    class Demanding(Trainer):
        def __init__(self, *args: Any, gamma: float, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    with pytest.raises(InvalidRequest, match="Demanding needs 'gamma'"):
        extract.further_arguments(built(tmp_path, Demanding, gamma=1.0))


def test_a_constructor_is_given_what_it_takes_and_none_for_what_it_needs(tmp_path: Path) -> None:
    class Plain(Trainer):
        def __init__(self, model: Any, args: Any, train_dataset: Any, eval_dataset: Any) -> None:
            self.given = (train_dataset, eval_dataset)
            super().__init__(model, args, train_dataset=train_dataset, eval_dataset=eval_dataset)

    trainer = Plain(bert(), built(tmp_path).args, Numbers(), None)
    trainer.compute_metrics = print
    parts = {**extract.parts(trainer), "model": trainer.model, "args": trainer.args}
    assert extract.built_again(Plain, parts).given == (trainer.train_dataset, None)


def test_the_user_s_callbacks_are_told_from_the_trainer_s(tmp_path: Path) -> None:
    mine, early = Counting(), EarlyStoppingCallback()
    assert extract.user_callbacks(built(tmp_path, callbacks=[mine, early])) == [mine, early]
    assert extract.user_callbacks(built(tmp_path)) == []
    assert [type(own_callback) for own_callback in extract.user_callbacks(built(tmp_path, Scaled))] == [Told]


def test_an_optimizer_is_the_user_s_where_the_arguments_do_not_name_it(tmp_path: Path) -> None:
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = built(tmp_path, model=model, fields={"max_steps": 1}, optimizers=(optimizer, None))
    assert extract.user_optimizers(trainer) == (optimizer, None)
    trainer.train()
    assert extract.user_optimizers(trainer)[0] is optimizer
    usual = built(tmp_path, fields={"max_steps": 1})
    assert extract.user_optimizers(usual) == (None, None)
    assert extract.optimizer_of(usual) is None
    usual.train()
    assert extract.user_optimizers(usual) == (None, None)
    assert extract.optimizer_of(usual).state  # the Trainer's own has states to be moved all the same


@dataclass
class Computing(TrainingArguments):
    """As GRPO's: of the two sizes one is given, or neither; the other follows from it, and both from the micro-batch."""

    size: int | None = None
    steps: int | None = None
    scale: str | float = 1.0
    named: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None and self.steps is not None:
            raise ValueError("both")
        if self.size is None and self.steps is None:
            self.steps = self.gradient_accumulation_steps
        if self.size is None:
            self.size = self.per_device_train_batch_size * self.steps
        self.steps = self.size // self.per_device_train_batch_size
        self.scale = {1.0: "one"}.get(self.scale, self.scale)


@pytest.mark.parametrize(
    ("given", "own", "computed"),
    [
        ({}, {}, {"size": None, "steps": None, "scale": 1.0}),
        ({"named": "x", "scale": 2.0}, {"named": "x", "scale": 2.0}, {"size": None, "steps": None}),
        ({"size": 32}, {"size": 32}, {"steps": None, "scale": 1.0}),
        ({"steps": 8}, {"size": 32}, {"steps": None, "scale": 1.0}),
    ],
)
def test_what_a_class_computes_is_none_of_the_user_s_own(
    given: dict[str, Any], own: dict[str, Any], computed: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "use_cpu": True, "report_to": "none"}
    args = Computing(str(tmp_path), **sizes, **given)
    before = dict(vars(args))
    assert extract.user_fields(args) == own
    assert extract.computed_fields(args) == computed
    assert extract.shares_accumulation(args) is ("size" not in own)
    assert vars(args) == before
    other = Computing(str(tmp_path), **sizes | {"per_device_train_batch_size": 2}, **extract.user_fields(args))
    assert other.size == (own.get("size") or 4), "a batch of the answer's size, or the user's"


def test_a_trainer_that_is_built_again_takes_its_data_as_they_are_and_prepares_what_it_is_given_later(
    tmp_path: Path,
) -> None:
    class Preparing(Trainer):
        def __init__(self, *args: Any, train_dataset: Any, **kwargs: Any) -> None:
            super().__init__(*args, train_dataset=self._prepare_dataset(train_dataset, "train"), **kwargs)

        def _prepare_dataset(self, dataset: Any, name: str) -> Any:
            return [*dataset, name]

    for kind in (Preparing, type("Inheriting", (Preparing,), {})):
        trainer = built(tmp_path, kind, train_dataset=[1])
        assert trainer.train_dataset == [1, "train"]
        parts = {"model": trainer.model, "args": trainer.args, "train_dataset": trainer.train_dataset}
        again = extract.built_again(kind, parts)
        assert again.train_dataset == [1, "train"]
        assert type(again) is kind
        assert again._prepare_dataset([2], "later") == [2, "later"]
    assert type(extract.built_again(Trainer, parts)) is Trainer
