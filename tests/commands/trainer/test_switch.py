"""A result is set on a built Trainer in place: it trains as one that was built with the answer."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments, set_seed

from autotune.commands.trainer.switch import restart_reason, switch
from autotune.space.collators import WithoutFullMask
from tests.commands.trainer.test_apply import checkpoints, found
from tests.trainers import CHECKPOINTING, Numbers, bert, built

FIELDS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "disable_tqdm": True}


def seeded(folder: Path, **fields: Any) -> Any:
    """A Trainer whose model and order of data are the same each time."""
    set_seed(1)
    return built(folder, model=bert(), fields={**FIELDS, **fields}, eval_dataset=Numbers(8))


def weights(trainer: Any) -> dict[str, Any]:
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}, {"checkpointing": "full"}], ids=str)
def test_it_trains_bit_for_bit_as_one_that_was_built_with_the_answer(settings: dict[str, Any], tmp_path: Path) -> None:
    trainer = seeded(tmp_path / "ours")
    switch(found(8, **settings), trainer, [trainer.args])
    trainer.train()
    evaluated = trainer.evaluate()
    fields = {"bf16": settings.get("precision") == "bf16", CHECKPOINTING: "checkpointing" in settings}
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    other = seeded(tmp_path / "theirs", **sizes, **fields)
    other.train()
    ours, theirs = weights(trainer), weights(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert evaluated["eval_loss"] == other.evaluate()["eval_loss"]
    assert trainer.accelerator.mixed_precision == ("bf16" if fields["bf16"] else "no")


def test_a_model_that_was_evaluated_before_takes_the_answer_s_precision(tmp_path: Path) -> None:
    trainer, other = seeded(tmp_path / "ours"), seeded(tmp_path / "theirs", bf16=True)
    for each in (trainer, other):
        set_seed(1)
        each.evaluate()
        if each is trainer:
            switch(found(4, precision="bf16"), trainer, [trainer.args])
        each.train()
    ours, theirs = weights(trainer), weights(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_answer_in_fp32_leaves_the_launcher_s_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trainer = seeded(tmp_path)
    assert trainer.accelerator.mixed_precision == "bf16"
    switch(found(8), trainer, [trainer.args])
    assert trainer.accelerator.mixed_precision == "no"


def test_collator_and_models_are_those_of_the_answer(tmp_path: Path) -> None:
    trainer = seeded(tmp_path)

    def made() -> Any:
        model = bert()
        model.bert.encoder.gradient_checkpointing = True
        return model

    trainer.model_init = made
    switch(found(8, attention_mask="where_needed", checkpointing="none"), trainer, [trainer.args])
    assert isinstance(trainer.data_collator, WithoutFullMask)
    assert checkpoints(made())
    assert not checkpoints(trainer.model_init())


def test_the_optimizer_of_an_earlier_training_gives_way_to_the_answer_s(tmp_path: Path) -> None:
    trainer = seeded(tmp_path)
    trainer.train()
    switch(found(8, optimizer="sgd"), trainer, [trainer.args])
    trainer.train()
    assert type(trainer.optimizer.optimizer) is torch.optim.SGD


def test_it_saves_resumes_and_trains_again(tmp_path: Path) -> None:
    trainer = seeded(tmp_path)
    switch(found(8), trainer, [trainer.args])
    trainer.train()
    ended = weights(trainer)
    assert (tmp_path / "checkpoint-4").is_dir()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert all(torch.equal(weight, ended[name]) for name, weight in weights(trainer).items())
    trainer.args.max_steps = 6
    trainer.train()
    assert trainer.state.global_step == 6


def test_the_arguments_that_the_script_holds_follow(tmp_path: Path) -> None:
    trainer = seeded(tmp_path)
    args, copied = trainer.args, copy.copy(trainer.args)
    another = TrainingArguments(str(tmp_path), per_device_train_batch_size=3, use_cpu=True)
    switch(found(8, precision="bf16"), trainer, [args, copied, another])
    assert trainer.args is args
    for each in (args, copied):
        assert (each.per_device_train_batch_size, each.gradient_accumulation_steps, each.bf16) == (8, 1, True)
    assert (another.per_device_train_batch_size, another.bf16) == (3, False)


class Reading(Trainer):
    """Its constructor reads the batch size."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = 2 * self.args.per_device_train_batch_size


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        (Trainer, {}, ""),
        (Reading, {}, "the __init__ of Reading reads per_device_train_batch_size"),
        (Trainer, {"cpu_allocator": "jemalloc"}, "the answer starts so: "),
        (Trainer, {"data_parallel_size": 2}, "torchrun --nproc-per-node 2"),
    ],
    ids=["plain", "reading", "variables", "ranks"],
)
def test_what_cannot_be_set_in_place_takes_a_new_start(
    kind: type, settings: dict[str, Any], text: str, tmp_path: Path
) -> None:
    sizes = 4 if "data_parallel_size" in settings else 8
    reason = restart_reason(found(sizes, **settings), built(tmp_path, kind))
    assert text in reason
    assert bool(reason) == bool(text)
