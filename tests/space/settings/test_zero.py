"""DeepSpeed's ZeRO."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers.integrations.deepspeed
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from transformers import AutoConfig, TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig, unset_hf_deepspeed_config

from autotune.space.settings import SETTINGS, Context
from autotune.space.settings.zero import NAMES, NVME, SETTING, zero_config
from autotune.space.setup import training_setup
from tests.makers import GIB, configuration, cpu, gpu, workload
from tests.space.settings.fakes import DeepSpeedEngine, observed


class Filled(HfTrainerDeepSpeedConfig, HfDeepSpeedConfig):  # type: ignore[misc]
    """As transformers makes the class where DeepSpeed is installed."""


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Filled]]:
    """The class, which needs no DeepSpeed but asks for its version; transformers forgets at the end that it was made."""
    monkeypatch.setattr(transformers.integrations.deepspeed, "dep_version_check", lambda package: None)
    yield Filled
    unset_hf_deepspeed_config()


EVERY = (*NAMES[1:], f"{NVME}/local/nvme")
LARGE = workload(parameters=8_000_000_000)
CARD = gpu(
    versions={"deepspeed": "0.18"},
    total_memory_bytes=80 * GIB,
    training_argument_fields=tuple(field.name for field in dataclasses.fields(TrainingArguments)),
)


@pytest.mark.parametrize("value", EVERY)
def test_transformers_fills_its_config_with_exactly_the_batch_that_was_asked_for(
    filled: type[Filled], value: str, tmp_path: Path
) -> None:
    fields = training_setup(configuration(4, 48, zero=value), CARD, {"learning_rate": 3e-4}).training_arguments
    config = filled(fields.pop("deepspeed"))
    fields |= {"use_cpu": True, "bf16": True, "tf32": None}
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to="none", **fields)
    config.trainer_config_process(arguments)
    config.trainer_config_finalize(
        arguments, SimpleNamespace(config=AutoConfig.for_model("gpt2", n_embd=64)), num_training_steps=10
    )
    told = config.config
    assert told["train_micro_batch_size_per_gpu"] == 4
    assert told["gradient_accumulation_steps"] == 12
    assert told["train_batch_size"] == 48
    assert told["bf16"]["enabled"] is True
    assert told["fp16"]["enabled"] is False
    assert told["zero_optimization"]["stage"] == int(value[0])
    assert ("optimizer" in told) == ("offload" in value)
    if "offload" in value:
        assert told["optimizer"]["params"]["lr"] == 3e-4
        place = "nvme" if value.startswith(NVME) else "cpu"
        assert told["zero_optimization"]["offload_optimizer"]["device"] == place
        param = None if value.endswith("_optimizer") else place
        assert told["zero_optimization"].get("offload_param", {}).get("device") == param
    assert "auto" not in str(told)


@pytest.mark.parametrize("value", EVERY)
def test_its_own_config_is_read_as_the_value_that_made_it(value: str) -> None:
    assert SETTING.read(value) == value
    assert SETTING.from_user(Context(CARD, LARGE, {"deepspeed": zero_config(value)})) == value
    assert SETTING.from_user(Context(CARD, LARGE)) == "none"


@pytest.mark.parametrize(
    "own",
    [
        {"zero_optimization": {"stage": 2}},
        {"zero_optimization": None},
        "ds_config.json",
    ],
)
def test_another_config_of_the_user_s_stays_as_it_is(own: Any) -> None:
    assert SETTING.from_user(Context(CARD, LARGE, {"deepspeed": own})) == "own"
    assert training_setup(configuration(8, zero="own"), CARD, {"deepspeed": own}).training_arguments["deepspeed"] == own
    assert "deepspeed" not in training_setup(configuration(8, zero="none"), CARD, {"deepspeed": own}).training_arguments


@pytest.mark.parametrize("text", ["4", "3_offload_nvme", "3_offload_nvme:", "3_offload_nvme:folder"])
def test_what_it_is_not_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        SETTING.read(text)


def test_a_single_process_is_told_that_it_is_alone() -> None:
    variables = training_setup(configuration(8, zero="3_offload_all"), CARD, {}).process_environment
    assert (variables["WORLD_SIZE"], variables["RANK"]) == ("1", "0")
    assert training_setup(configuration(8, zero="none"), CARD, {}).process_environment == {}


def test_it_is_read_back_from_deepspeed_s_engine() -> None:
    for value in EVERY:
        trainer = observed()
        trainer.trainer.model_wrapped = DeepSpeedEngine(zero_config(value))
        assert SETTING.read_back(trainer) == value
    assert SETTING.read_back(observed()) == "none"


def test_it_is_only_for_models_that_do_not_fit_otherwise() -> None:
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None
    assert "GPU's memory" in str(SETTING.unavailable("2", Context(cpu(), LARGE)))
    assert "pip install deepspeed" in str(SETTING.unavailable("3_offload_all", Context(gpu(), LARGE)))
    assert "fit the" in str(SETTING.unavailable("3_offload_all", Context(CARD, workload())))
    assert SETTING.unavailable("3_offload_all", Context(CARD, LARGE)) is None, "16 x 8 GB are more than 80 GiB"
    assert "nothing to divide between" in str(SETTING.unavailable("3", Context(CARD, LARGE)))
    several = gpu(versions={"deepspeed": "0.18"}, device_count=4)
    assert SETTING.unavailable("3", Context(several, LARGE)) is None


@pytest.mark.parametrize(
    ("asked", "linear_dtype", "value"),
    [
        ("bf16", "bfloat16", "bf16"),
        ("fp32", "bfloat16", "bf16_weights"),
        ("bf16", "float32", "fp32"),
    ],
)
def test_deepspeed_s_engine_casts_the_model_itself_and_has_no_autocast(
    asked: str, linear_dtype: str, value: str
) -> None:
    config = zero_config("3_offload_all") | {name: {"enabled": name == asked} for name in ("bf16", "fp16")}
    shown = observed(linear_dtype=linear_dtype)
    shown.trainer.model_wrapped = DeepSpeedEngine(config)
    assert SETTINGS["precision"].read_back(shown) == value
