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
        return {auto for name, value in config.items() for auto in autos(value, f"{path}.{name}")}
    return {path[1:]} if config == AUTO else set()


@pytest.mark.parametrize("stage", ["0", "1", "2", "3", "3_offload_all"])
def test_the_numbers_are_those_that_transformers_would_fill_in_and_finds_consistent(stage: str, tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=1, vocab_size=8))
    arguments = TrainingArguments(output_dir=str(tmp_path), **ARGUMENTS)
    config = zero_config(stage) | WITH_OPTIMIZER
    exact = resolved(config, ARGUMENTS, hidden_size=model.config.hidden_size)
    assert autos(exact) == {"scheduler.params.warmup_num_steps"}
    ours, filled = Checked(exact), Checked(config)
    for checked in (ours, filled):
        checked.trainer_config_process(arguments)
        checked.trainer_config_finalize(arguments, model, 100)
    assert not ours.mismatches
    assert ours.config == filled.config
    assert str(ours.dtype()) == "torch.bfloat16"
    wrong = Checked(exact | {"train_batch_size": 13})
    wrong.trainer_config_process(arguments)
    assert wrong.mismatches, "these checks find a wrong number"


def test_a_learning_rate_that_no_argument_states_is_the_tool_s_own(tmp_path: Path) -> None:
    known = {name: value for name, value in ARGUMENTS.items() if name not in ("learning_rate", "weight_decay")}
    exact = resolved(zero_config("2") | WITH_OPTIMIZER, known)
    assert exact["optimizer"]["params"] == {"lr": AUTO, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": AUTO}
    arguments = TrainingArguments(output_dir=str(tmp_path), **known, learning_rate=2e-5, weight_decay=0.01)
    checked = Checked(exact)
    checked.trainer_config_process(arguments)
    assert not checked.mismatches
    assert checked.config["optimizer"]["params"]["lr"] == checked.config["scheduler"]["params"]["warmup_max_lr"] == 2e-5


def test_what_is_unknown_stays_auto_and_what_is_set_stays() -> None:
    config = zero_config("3") | {"gradient_clipping": 0.25}
    exact = resolved(config, ARGUMENTS, ranks=4)
    assert exact["train_batch_size"] == 48, "of all ranks"
    assert autos(exact) == {
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
    }
    assert exact["gradient_clipping"] == 0.25
    assert config["train_batch_size"] == AUTO, "the configuration that was handed in is left as it was"
