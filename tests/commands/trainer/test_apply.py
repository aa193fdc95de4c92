"""A result goes into a Trainer: a new one, the user's own in all but what was tuned."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    ByT5Tokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    TrainerCallback,
    TrainingArguments,
)

from autotune.commands.result import TuningResult
from autotune.commands.trainer.apply import _warn_of_batch_size
from autotune.core import InvalidRequest, Value
from autotune.core.request import tuning_request
from autotune.errors import BatchSizeChanged, NotApplied
from tests import makers
from tests.trainers import CHECKPOINTING, Counting, Numbers, Scaled, Told, bert, built

BY_ITS_OLDER_NAME = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")


def checkpoints(model: Any) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def found(
    micro_batch_size: int = 8,
    user_objects: bool = True,
    facts: dict[str, Any] | None = None,
    global_batch_size: int = 8,
    **settings: Value,
) -> TuningResult:
    """A result whose best, twice as fast as the baseline, is this configuration, of 8 samples a step unless told."""
    of = makers.configuration(micro_batch_size, global_batch_size, **settings)
    workload = makers.workload(user_objects=user_objects)
    baseline = makers.trial(0, 10.0, of=makers.configuration(4, global_batch_size), confirmed=10.0)
    trials = [baseline, makers.trial(1, 20.0, of=of, confirmed=20.0)]
    return makers.result(trials, **{"workload": workload, **(facts or {})})


def test_the_new_trainer_has_the_answer_and_all_that_was_the_user_s(tmp_path: Path) -> None:
    mine, early = Counting(), EarlyStoppingCallback()
    fields = {"learning_rate": 3e-4, "eval_strategy": "steps", "eval_steps": 7, "auto_find_batch_size": False}
    parts = {"eval_dataset": Numbers(8), "compute_metrics": print, "callbacks": [mine, early]}
    trainer = built(tmp_path, fields=fields, **parts)
    made = found(8, precision="bf16", checkpointing="full").apply(trainer)
    assert made is not trainer
    assert (made.args.per_device_train_batch_size, made.args.gradient_accumulation_steps) == (8, 1)
    assert made.args.bf16
    assert getattr(made.args, CHECKPOINTING)
    assert made.args.learning_rate == 3e-4
    assert (str(made.args.eval_strategy.value), made.args.eval_steps) == ("steps", 7)
    assert made.args.output_dir == str(tmp_path)
    assert made.model is trainer.model
    assert made.train_dataset is trainer.train_dataset
    assert made.eval_dataset is trainer.eval_dataset
    assert made.compute_metrics is print
    assert [callback for callback in made.callback_handler.callbacks if callback in (mine, early)] == [mine, early]
    assert (trainer.args.per_device_train_batch_size, trainer.args.bf16) == (4, False)


def checkpointed() -> Any:
    model = bert()
    model.gradient_checkpointing_enable()
    return model


@BY_ITS_OLDER_NAME
def test_checkpointing_that_was_switched_on_by_hand_is_off_in_the_training_too(tmp_path: Path) -> None:
    model = checkpointed()
    made = found(8, checkpointing="none").apply(built(tmp_path, model=model, fields={"max_steps": 1}))
    assert made.model is model
    assert not checkpoints(model)
    made.train()
    assert not checkpoints(model)
    assert not any(module._forward_hooks for module in model.modules())


@BY_ITS_OLDER_NAME
def test_a_result_that_did_not_search_checkpointing_leaves_the_model_s_own(tmp_path: Path) -> None:
    of = makers.configuration(8, 8)
    of = replace(of, settings=tuple(setting for setting in of.settings if setting[0] != "checkpointing"))
    answer = makers.result([makers.trial(0, of=of)], workload=makers.workload(user_objects=True))
    assert checkpoints(answer.apply(built(tmp_path, model=checkpointed())).model)


@BY_ITS_OLDER_NAME
def test_checkpointing_stays_off_after_the_user_s_own_trainer_has_trained_with_it(tmp_path: Path) -> None:
    trainer = built(tmp_path, fields={"gradient_checkpointing": True, "max_steps": 1})
    made = found(8, checkpointing="none").apply(trainer)
    trainer.train()
    assert checkpoints(made.model)
    made.train()
    assert not checkpoints(made.model)


@pytest.mark.parametrize(("before", "answer"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_a_model_that_was_trained_in_another_precision_trains_in_the_answer_s(
    before: str, answer: str, tmp_path: Path
) -> None:
    trainer = built(tmp_path, fields={"max_steps": 1, "bf16": before == "bf16"})
    made = found(8, precision=answer).apply(trainer)
    dtypes: list[torch.dtype] = []
    trainer.model.classifier.register_forward_hook(lambda _layer, _inputs, output: dtypes.append(output.dtype))
    for training in (trainer, made):
        training.train()
    expected = {"fp32": torch.float32, "bf16": torch.bfloat16}
    assert (dtypes[0], dtypes[-1]) == (expected[before], expected[answer])


# The global batch size ------------------------------------------------------------------------------------------


def test_a_result_for_another_global_batch_says_what_it_changes(tmp_path: Path) -> None:
    with pytest.warns(BatchSizeChanged, match=r"4 x 2 = 8 samples a step, the new one trains 48"):
        made = found(16, global_batch_size=48).apply(built(tmp_path))
    assert (made.args.per_device_train_batch_size, made.args.gradient_accumulation_steps) == (16, 3)


@pytest.mark.parametrize("told", ["no size", "another size"])
def test_arguments_that_the_search_was_not_given_make_it_a_change(told: str, tmp_path: Path) -> None:
    fields = {"no size": {"learning_rate": 1e-3}, "another size": {"per_device_train_batch_size": 2}}.get(told, {})
    facts = {"request": tuning_request("gpt2-mini", 48, args=fields)}
    with pytest.warns(BatchSizeChanged):
        found(16, facts=facts, global_batch_size=48).apply(built(tmp_path))


@pytest.mark.filterwarnings("error::autotune.errors.BatchSizeChanged")
def test_nothing_is_said_of_a_batch_that_is_the_same_or_was_asked_for(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    found(2).apply(trainer)
    asked = found(16, facts={"user_arguments": trainer.args}, global_batch_size=48).apply(trainer)
    assert asked.args.gradient_accumulation_steps == 3
    fields = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    loaded = {"request": tuning_request("gpt2-mini", 48, args=fields)}
    found(16, facts=loaded, global_batch_size=48).apply(trainer)


def test_ranks_count_in_the_trainer_s_batch(tmp_path: Path) -> None:
    args = SimpleNamespace(per_device_train_batch_size=2, gradient_accumulation_steps=1, world_size=4, n_gpu=1)
    with pytest.warns(BatchSizeChanged, match="2 x 1 x 4 ranks = 8 samples a step, the new one trains 48"):
        _warn_of_batch_size(found(16, global_batch_size=48), args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _warn_of_batch_size(found(8), args)


# The rest -------------------------------------------------------------------------------------------------------


def test_a_class_of_one_s_own_gets_its_argument_and_makes_its_callback_once(tmp_path: Path) -> None:
    assert found().apply(built(tmp_path, Scaled, scale=None)).scale is None
    made = found().apply(built(tmp_path, Scaled, scale=2.0))
    assert type(made) is Scaled
    assert made.scale == 2.0
    told = [callback for callback in made.callback_handler.callbacks if isinstance(callback, Told)]
    assert [item.trainer for item in told] == [made]


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


@pytest.fixture
def tf32_card(monkeypatch: pytest.MonkeyPatch, fresh_float32_precision: None) -> None:
    """Arguments may ask for TF32 here."""
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)


@pytest.mark.parametrize("way", ["apply", "training_arguments"])
@pytest.mark.parametrize(("precision", "others", "expected"), [("tf32", "highest", "tf32"), ("fp32", "high", "ieee")])
def test_tf32_is_as_the_answer_says_whatever_this_process_had_set_before(
    tmp_path: Path, tf32_card: None, precision: str, others: str, expected: str, way: str
) -> None:
    trainer = built(tmp_path, fields={"tf32": precision != "tf32"})
    for tf32 in (True, False):
        TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", tf32=tf32)
    torch.set_float32_matmul_precision(others)
    answer = found(8, precision=precision)
    if way == "apply":
        answer.apply(trainer)
    else:
        answer.training_arguments(str(tmp_path))
    assert torch.backends.fp32_precision == torch.backends.cuda.matmul.fp32_precision == expected


def test_each_applied_trainer_trains_with_its_own_tf32(tmp_path: Path, tf32_card: None) -> None:
    seen: list[str] = []

    class Noting(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seen.append(torch.backends.cuda.matmul.fp32_precision)

    trainer = built(tmp_path, fields={"max_steps": 1, "tf32": True}, callbacks=[Noting()])
    first, second = (found(8, precision=precision).apply(trainer) for precision in ("tf32", "fp32"))
    for made in (first, second, first):
        made.train()
    assert seen == ["tf32", "ieee", "tf32"]


@pytest.mark.parametrize(("value", "own"), [("default", "true"), ("regional", "false")])
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
    ("settings", "text"),
    [
        ({"lora": "8"}, "LoraConfig"),
        ({"packing": "flattening"}, "DataCollatorWithFlattening"),
    ],
)
def test_what_a_built_model_cannot_take_is_refused_with_advice(settings: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        found(user_objects=False, **settings).apply(built(tmp_path))
    assert text in str(caught.value)
