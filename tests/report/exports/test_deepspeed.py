"""DeepSpeed's configuration: each stage, and numbers that transformers itself finds consistent."""

from pathlib import Path
from typing import Any

import pytest
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

from autotune.report.exports.deepspeed import AUTO, resolved
from autotune.space.settings.zero import zero_config

ARGUMENTS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "bf16": True,
    "learning_rate": 1e-4,
    "max_grad_norm": 0.5,
    "adam_beta2": 0.95,
    "weight_decay": 0.1,
    "use_cpu": True,
}
WITH_OPTIMIZER = {
    "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)},
    "scheduler": {
        "type": "WarmupLR",
        "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), AUTO),
    },
}


class Checked(HfTrainerDeepSpeedConfig, HfDeepSpeedConfig):  # type: ignore[misc]
    """transformers' own consistency checks on accelerate's reader, as they stand together where deepspeed is installed."""

    def __init__(self, config: dict[str, Any]) -> None:
        HfDeepSpeedConfig.__init__(self, config)
        self._dtype = None
        self.mismatches: list[str] = []


def autos(config: Any, path: str = "") -> set[str]:
    if isinstance(config, dict):
        return {found for name, value in config.items() for found in autos(value, f"{path}.{name}")}
    return {path[1:]} if config == AUTO else set()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_transformers_finds_the_numbers_of_every_stage_consistent(stage: int, tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=1, vocab_size=8))
    exact = resolved(zero_config(str(stage)) | WITH_OPTIMIZER, ARGUMENTS, hidden_size=model.config.hidden_size)
    checked = Checked(exact)
    arguments = TrainingArguments(output_dir=str(tmp_path), **ARGUMENTS)
    checked.trainer_config_process(arguments)
    checked.trainer_config_finalize(arguments, model, 100)
    assert not checked.mismatches
    assert checked.config["train_batch_size"] == 12
    assert str(checked.dtype()) == "torch.bfloat16"
    assert autos(exact) == {"scheduler.params.warmup_num_steps"}


def test_what_transformers_would_have_filled_in_is_what_stands_there(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=1, vocab_size=8))
    config = zero_config("3_offload_all") | WITH_OPTIMIZER
    filled = Checked(config)
    arguments = TrainingArguments(output_dir=str(tmp_path), **ARGUMENTS)
    filled.trainer_config_process(arguments)
    filled.trainer_config_finalize(arguments, model, 100)
    ours = resolved(config, ARGUMENTS, hidden_size=16)
    ours["scheduler"]["params"]["warmup_num_steps"] = filled.config["scheduler"]["params"]["warmup_num_steps"]
    assert ours == filled.config


def test_a_wrong_number_is_what_these_checks_find(tmp_path: Path) -> None:
    exact = resolved(zero_config("2"), ARGUMENTS, hidden_size=16) | {"train_batch_size": 13}
    checked = Checked(exact)
    checked.trainer_config_process(TrainingArguments(output_dir=str(tmp_path), **ARGUMENTS))
    assert len(checked.mismatches) == 1


def test_all_ranks_count_in_the_global_batch() -> None:
    assert resolved(zero_config("1"), ARGUMENTS, ranks=4)["train_batch_size"] == 48


def test_what_is_unknown_stays_auto_and_what_is_said_stays_said() -> None:
    config = zero_config("3") | {"gradient_clipping": 0.25}
    exact = resolved(config, ARGUMENTS)
    assert autos(exact) == {
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
    }
    assert exact["gradient_clipping"] == 0.25
    assert config["train_batch_size"] == AUTO, "the configuration that was handed in is left as it was"
