"""A result goes into a Trainer: a new one, the user's own in all but what was tuned."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    ByT5Tokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    TrainingArguments,
    default_data_collator,
)

from autotune.applying import NotApplied, forget_tf32
from autotune.configuration import Value
from autotune.errors import InvalidRequest
from autotune.result import TuningResult
from tests import makers
from tests.trainers import Counting, Numbers, Scaled, Told, bert, built


def found(micro_batch_size: int = 8, user_objects: bool = True, **levers: Value) -> TuningResult:
    """A result whose best is this configuration of 8 samples a step."""
    of = makers.configuration(micro_batch_size, 8, **levers)
    return makers.result(
        [makers.trial(0, 20.0, of=of, confirmed=20.0)], workload=makers.workload(user_objects=user_objects)
    )


def test_the_new_trainer_has_the_answer_and_all_that_was_the_user_s(tmp_path: Path) -> None:
    mine, early = Counting(), EarlyStoppingCallback()
    fields = {"learning_rate": 3e-4, "eval_strategy": "steps", "eval_steps": 7, "auto_find_batch_size": False}
    parts = {"eval_dataset": Numbers(8), "compute_metrics": print, "callbacks": [mine, early]}
    trainer = built(tmp_path, fields=fields, **parts)
    made = found(8, precision="bf16", checkpointing="full").apply(trainer)
    assert made is not trainer
    assert (made.args.per_device_train_batch_size, made.args.gradient_accumulation_steps) == (8, 1)
    assert made.args.bf16
    assert made.args.activation_checkpointing
    assert made.args.learning_rate == 3e-4
    assert (str(made.args.eval_strategy.value), made.args.eval_steps) == ("steps", 7)
    assert made.args.output_dir == str(tmp_path)
    assert made.model is trainer.model
    assert made.train_dataset is trainer.train_dataset
    assert made.eval_dataset is trainer.eval_dataset
    assert made.compute_metrics is print
    assert [one for one in made.callback_handler.callbacks if one in (mine, early)] == [mine, early]
    assert (trainer.args.per_device_train_batch_size, trainer.args.bf16) == (4, False)


def test_it_trains_with_the_tuned_batch(tmp_path: Path) -> None:
    mine = Counting()
    trainer = built(tmp_path, fields={"max_steps": 3}, callbacks=[mine])
    made = found(2).apply(trainer)
    sizes: list[int] = []
    step = made.training_step
    made.training_step = lambda model, inputs, *more: sizes.append(len(inputs["labels"])) or step(model, inputs, *more)
    made.train()
    assert mine.steps == 3
    assert sizes == [2] * 12


def test_checkpointing_that_the_user_had_under_its_older_name_is_off_where_the_answer_is_without(
    tmp_path: Path,
) -> None:
    trainer = built(tmp_path, fields={"activation_checkpointing": True, "activation_checkpointing_kwargs": {"a": 1}})
    made = found(8, checkpointing="none").apply(trainer)
    assert not made.args.activation_checkpointing
    assert not made.args.gradient_checkpointing


def test_a_class_of_one_s_own_gets_its_argument_and_makes_its_callback_once(tmp_path: Path) -> None:
    made = found().apply(built(tmp_path, Scaled, scale=2.0))
    assert type(made) is Scaled
    assert made.scale == 2.0
    told = [one for one in made.callback_handler.callbacks if isinstance(one, Told)]
    assert [one.trainer for one in told] == [made]


def test_none_that_was_given_in_the_place_of_a_default_is_given_again(tmp_path: Path) -> None:
    assert found().apply(built(tmp_path, Scaled, scale=None)).scale is None


def test_an_optimizer_of_one_s_own_goes_along(tmp_path: Path) -> None:
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = found(optimizer="own").apply(built(tmp_path, model=model, optimizers=(optimizer, None)))
    assert made.optimizer is optimizer


def test_an_optimizer_of_one_s_own_that_was_not_measured_stays_with_a_word_on_it(tmp_path: Path) -> None:
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = built(tmp_path, model=model, optimizers=(optimizer, None))
    with pytest.warns(NotApplied, match="Your SGD stays, but the answer was measured with adafactor"):
        made = found(optimizer="adafactor").apply(trainer)
    assert made.optimizer is optimizer


def test_a_copy_of_the_collator_pads_as_the_answer_says(tmp_path: Path) -> None:
    collator = DataCollatorWithPadding(ByT5Tokenizer())
    made = found(padding="16").apply(built(tmp_path, data_collator=collator))
    assert made.data_collator.pad_to_multiple_of == 16
    assert collator.pad_to_multiple_of is None


def test_batches_of_a_named_model_s_answer_come_without_a_mask_that_hides_nothing(tmp_path: Path) -> None:
    trainer = built(tmp_path, data_collator=default_data_collator)
    made = found(user_objects=False, attention_mask="where_needed").apply(trainer)
    row = {"input_ids": [1, 2], "attention_mask": [1, 1]}
    assert "attention_mask" not in made.data_collator([row])
    assert "attention_mask" in made.data_collator([row, {**row, "attention_mask": [1, 0]}])
    assert trainer.data_collator is default_data_collator


@pytest.mark.parametrize("way", ["apply", "training_arguments"])
def test_tf32_is_as_the_answer_says_also_where_this_process_had_it_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    before = torch.backends.fp32_precision
    forget_tf32()  # what other tests had it switched to
    try:
        trainer = built(tmp_path)
        for tf32 in (True, False):
            TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", tf32=tf32)
            assert torch.backends.fp32_precision == ("tf32" if tf32 else "ieee")
        answer = found(8, precision="tf32")
        if way == "apply":
            answer.apply(trainer)
        else:
            answer.training_arguments(str(tmp_path))
        assert torch.backends.fp32_precision == "tf32"
    finally:
        torch.backends.fp32_precision = before


@pytest.mark.parametrize(("value", "own"), [("regional", None), ("default", "true"), ("regional", "false")])
def test_blocks_are_compiled_as_the_answer_says_whatever_the_process_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, own: str | None
) -> None:
    name = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"
    monkeypatch.setenv(name, own) if own else monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotApplied)
        made = found(8, compile=value).apply(built(tmp_path))
    plugin = made.accelerator.state.dynamo_plugin
    assert (plugin.backend.value.lower(), plugin.use_regional_compilation) == ("inductor", value == "regional")
    assert os.environ.get(name) == own


def test_switches_are_set_and_what_a_process_must_be_started_with_is_said(tmp_path: Path) -> None:
    of = makers.configuration(8, 8, cpu_allocator="jemalloc", sdpa_kernel="math", attention="sdpa")
    answer = makers.result(
        [makers.trial(0, of=of)],
        workload=makers.workload(user_objects=True),
        environment=makers.cpu(libraries={"jemalloc": "libjemalloc.so.2"}),
    )
    try:
        with pytest.warns(NotApplied, match=r"starts so: .*LD_PRELOAD=libjemalloc\.so\.2"):
            answer.apply(built(tmp_path))
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    finally:
        for switch in ("flash", "mem_efficient", "cudnn", "math"):
            getattr(torch.backends.cuda, f"enable_{switch}_sdp")(True)
    assert "LD_PRELOAD" not in os.environ


def test_of_a_named_model_s_answer_attention_is_set_and_the_dtype_is_said(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    assert trainer.model.config._attn_implementation == "sdpa"
    with pytest.warns(NotApplied, match=r"weights are float32: from_pretrained\(..., dtype='bfloat16'\)"):
        made = found(user_objects=False, precision="bf16_weights", attention="eager").apply(trainer)
    assert made.model.config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("levers", "text"),
    [
        ({"lora": "8"}, "get_peft_model"),
        ({"quantization": "nf4", "lora": "8"}, "get_peft_model"),
        ({"packing": "flattening"}, "DataCollatorWithFlattening"),
    ],
)
def test_what_a_built_model_cannot_take_is_refused_with_advice(levers: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        found(user_objects=False, **levers).apply(built(tmp_path))
    assert text in str(caught.value)
