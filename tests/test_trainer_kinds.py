"""`tune` and `apply` with the kinds of Trainers that people bring: each is searched for real, and trains with its answer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune
from autotune.core.errors import InvalidRequest
from autotune.space.settings.micro_batch_size import GENERATION
from tests.hurry import hurry
from tests.trainers import Numbers, built

trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SIZES = {
    "vocab_size": 384,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


@pytest.fixture(autouse=True)
def a_short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def causal() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**SIZES))


def tokenizer() -> Any:
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer(padding_side="left")


def arguments(kind: type, folder: Path, **more: Any) -> Any:
    """Of 4 x 2 samples a step on the CPU."""
    known = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "report_to": "none", "use_cpu": True}
    known |= {"bf16": False, "save_strategy": "no", "gradient_checkpointing": False}
    return kind(output_dir=str(folder / "out"), **{**known, **more})


def rows(count: int = 32, **columns: Callable[[int], Any]) -> Any:
    return datasets.Dataset.from_dict({name: [make(at) for at in range(count)] for name, make in columns.items()})


def pairs(count: int = 32) -> Any:
    return rows(count, prompt=lambda at: f"{at}? ", chosen=lambda at: "yes " * (1 + at % 3), rejected=lambda at: "no")


def letters(completions: list[str], **_: Any) -> list[float]:
    """A reward."""
    return [float(len(set(text))) for text in completions]


def sft_on_completions(folder: Path) -> Any:
    args = arguments(trl.SFTConfig, folder, completion_only_loss=True, max_length=32)
    data = rows(prompt=lambda at: f"{at} and ", completion=lambda at: f"{at + 1} " * (1 + at % 4))
    return trl.SFTTrainer(model=causal(), args=args, train_dataset=data, processing_class=tokenizer())


def dpo(folder: Path) -> Any:
    args = arguments(trl.DPOConfig, folder, max_length=32)
    return trl.DPOTrainer(causal(), causal(), args, train_dataset=pairs(), processing_class=tokenizer())


def reward(folder: Path) -> Any:
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    model = Qwen2ForSequenceClassification(Qwen2Config(**SIZES, num_labels=1))
    args = arguments(trl.RewardConfig, folder, max_length=32)
    return trl.RewardTrainer(model, args, train_dataset=pairs(), processing_class=tokenizer())


def kto(folder: Path) -> Any:
    args = arguments(trl.KTOConfig, folder, max_length=32)
    data = rows(prompt=lambda at: f"{at}? ", completion=lambda at: "yes " * (1 + at % 3), label=lambda at: at % 2 == 0)
    return trl.KTOTrainer(causal(), causal(), args, train_dataset=data, processing_class=tokenizer())


def grpo(folder: Path, **more: Any) -> Any:
    args = arguments(trl.GRPOConfig, folder, **{"num_generations": 4, "max_completion_length": 4, "beta": 0.0, **more})
    data = rows(prompt=lambda at: f"{at} and" + " more" * (at % 3))
    return trl.GRPOTrainer(causal(), letters, args, train_dataset=data, processing_class=tokenizer())


def rloo(folder: Path) -> Any:
    args = arguments(trl.RLOOConfig, folder, num_generations=4, max_completion_length=4, beta=0.0)
    data = rows(prompt=lambda at: f"{at} and")
    return trl.RLOOTrainer(causal(), letters, args, train_dataset=data, processing_class=tokenizer())


def online_dpo(folder: Path) -> Any:
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    args = arguments(OnlineDPOConfig, folder, max_new_tokens=4, max_length=32)
    data = rows(prompt=lambda at: f"{at} and")
    return OnlineDPOTrainer(causal(), None, letters, args, train_dataset=data, processing_class=tokenizer())


def seq2seq_that_generates(folder: Path) -> Any:
    from transformers import (
        DataCollatorForSeq2Seq,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        T5Config,
        T5ForConditionalGeneration,
    )

    sizes = {"vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))
    args = arguments(
        Seq2SeqTrainingArguments, folder, predict_with_generate=True, eval_strategy="epoch", generation_max_length=4
    )
    words = tokenizer()
    data = rows(
        input_ids=lambda at: words(f"say {at}")["input_ids"], labels=lambda at: words(f"{at} " * 3)["input_ids"]
    )
    return Seq2SeqTrainer(
        model, args, DataCollatorForSeq2Seq(words), data, data.select(range(8)), processing_class=words
    )


def peft(folder: Path) -> Any:
    peft = pytest.importorskip("peft")
    args = arguments(trl.SFTConfig, folder, max_length=32)
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    data = rows(text=lambda at: f"paragraph {at} of many")
    return trl.SFTTrainer(
        model=causal(), args=args, train_dataset=data, processing_class=tokenizer(), peft_config=adapter
    )


class Stream(torch.utils.data.IterableDataset):
    """Ten samples, run through one after the other."""

    def __iter__(self) -> Iterator[Any]:
        return (Numbers()[place] for place in range(10))


def iterable(folder: Path) -> Any:
    return built(folder, train_dataset=Stream(), fields={"max_steps": 100})


KINDS = (grpo, sft_on_completions, dpo, reward, kto, rloo, online_dpo, seq2seq_that_generates, peft, iterable)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_searched_and_trains_with_its_answer(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    trainer = kind(tmp_path)
    only = {"micro_batch_size": [2, 4], "checkpointing": ["none"], "precision": ["fp32"]}
    result = autotune.tune(
        trainer, only=only, n_trials=2, space="quick", no_history=True, output_dir=str(tmp_path / "reports")
    )
    assert [trial.measurement.reason for trial in result.trials if trial.measurement.outcome != "completed"] == []
    assert len(result.trials) == 2

    made = result.apply(trainer)
    assert type(made) is type(trainer)
    size = made.args.per_device_train_batch_size
    assert size == result.best.configuration.micro_batch_size
    assert size * made.args.gradient_accumulation_steps == 8
    if hasattr(made.args, GENERATION):
        assert (made.args.generation_batch_size, made.args.steps_per_generation) == (8, 8 // size)
    made.args.max_steps = 2
    assert made.train().global_step == 2
    trainer.args.max_steps = 1
    assert trainer.train().global_step == 1, "the user's own is as it was"


def test_what_generates_less_often_than_each_step_is_refused_in_a_line(tmp_path: Path) -> None:
    for fields in ({"num_iterations": 2}, {"steps_per_generation": 4}):
        with pytest.raises(InvalidRequest, match="generates for 2 steps at once") as caught:
            autotune.tune(grpo(tmp_path, **fields), output_dir=str(tmp_path / "reports"))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "reports").exists()
