"""TRL's own parser reads trl.yaml into the values of the answer; transformers' reads the JSON file."""

import dataclasses
from pathlib import Path

import pytest
from trl import ModelConfig, SFTConfig
from trl.scripts.sft import make_parser

from autotune.report.exports import Answer, exports
from autotune.report.exports.answer import CHECKPOINTING_FIELDS, without
from autotune.space.setup import TrainingSetup
from tests.report.exports.answers import EVERY, FULL

pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")

HERE = ("plain", "full", "older name", "two ranks of a CPU")
"""Answers whose arguments can be built on a machine without a GPU."""


def read(folder: Path, of: Answer) -> tuple[SFTConfig, ModelConfig]:
    """What the command `trl sft --config` reads of the file."""
    path = folder / "trl.yaml"
    path.write_text(exports(of)["trl.yaml"])
    words = ["--config", str(path), "--dataset_name", "any", "--output_dir", str(folder / "out")]
    _, training, model, _ = make_parser().parse_args_and_config(words, fail_with_unknown_args=True)
    return training, model


@pytest.mark.parametrize("kind", HERE)
def test_trl_s_parser_reads_the_same_values(kind: str, tmp_path: Path) -> None:
    of = EVERY[kind]
    training, model = read(tmp_path, of)
    fields = without(of.fields, CHECKPOINTING_FIELDS)
    assert {name: getattr(training, name) for name in fields} == fields
    assert training.gradient_checkpointing is of.checkpointing
    assert (training.gradient_checkpointing_kwargs or {}) == of.checkpointing_kwargs
    assert training.max_length == of.sequence_length
    assert (model.dtype, model.attn_implementation) == ("float32", "sdpa")


def test_what_trl_would_switch_on_by_itself_stays_off(tmp_path: Path) -> None:
    bare = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "use_cpu": True}
    training, _ = read(tmp_path, Answer(TrainingSetup(bare)))
    assert (training.bf16, training.fp16, training.gradient_checkpointing) == (False, False, False)
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == 12


def test_an_adapter_in_four_bits_is_read_as_one(tmp_path: Path) -> None:
    of = dataclasses.replace(
        EVERY["adapter"], setup=dataclasses.replace(EVERY["adapter"].setup, training_arguments=FULL)
    )
    training, model = read(tmp_path, of)
    assert (model.use_peft, model.lora_r, model.lora_alpha, model.lora_dropout) == (True, 16, 32, 0.0)
    assert model.lora_target_modules == "all-linear"
    assert (model.load_in_4bit, model.bnb_4bit_quant_type, model.use_bnb_nested_quant) == (True, "nf4", True)
    assert training.padding_free
    assert '# no counterpart here: quantization bnb_4bit_compute_dtype = "bfloat16"' in exports(of)["trl.yaml"]
