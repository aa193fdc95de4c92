"""A configuration in Hugging Face's names: complete, and the user's own fields kept."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from autotune.core.errors import InvalidRequest
from autotune.core.request import tuning_request
from autotune.space.build import build_space
from autotune.space.settings import SETTINGS, Context
from autotune.space.setup import baseline_sizes, check_fields, training_setup
from tests.makers import FIELDS, configuration, cpu, gpu, refusal_of, workload

REAL_FIELDS = tuple(field.name for field in dataclasses.fields(TrainingArguments) if field.init)
OLDER = tuple(name for name in FIELDS if name != "activation_checkpointing")


def refusal(base: dict[str, Any], global_batch_size: int = 48) -> str:
    return refusal_of(lambda: baseline_sizes(global_batch_size, base))


def test_the_answer_holds_sizes_and_every_setting_s_fields_and_nothing_else() -> None:
    assert training_setup(configuration(8, precision="bf16", workers=2), cpu(), {}).training_arguments == {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 6,
        "activation_checkpointing": False,
        "fp16": False,
        "bf16": True,
        "tf32": None,
        "optim": "adamw_torch_fused",
        "dataloader_num_workers": 2,
        "dataloader_pin_memory": False,
        "use_cpu": True,
    }


@pytest.mark.parametrize("name", ["output_dir", "hub_token", "push_to_hub_token", "auto_find_batch_size", "use_cpu"])
def test_folders_secrets_and_batch_finders_never_travel(name: str) -> None:
    assert name not in training_setup(configuration(), gpu(), {name: "anything"}).training_arguments


def test_what_the_user_set_is_kept_and_what_is_tuned_is_overwritten() -> None:
    base = {"learning_rate": 1e-3, "per_device_train_batch_size": 99, "bf16": True, "optim": "sgd", "warmup_steps": 5}
    made = training_setup(configuration(8), cpu(), base).training_arguments
    assert (made["learning_rate"], made["warmup_steps"]) == (1e-3, 5)
    assert (made["per_device_train_batch_size"], made["bf16"], made["optim"]) == (8, False, "adamw_torch_fused")


@pytest.mark.parametrize(("fields", "name"), [(FIELDS, "activation_checkpointing"), (OLDER, "gradient_checkpointing")])
def test_checkpointing_has_the_name_that_this_transformers_knows(fields: tuple[str, ...], name: str) -> None:
    environment = cpu(training_argument_fields=fields)
    made = training_setup(
        configuration(checkpointing="full"), environment, {"gradient_checkpointing": False}
    ).training_arguments
    assert made[name] is True
    assert {"activation_checkpointing", "gradient_checkpointing"} & set(made) == {name}


def test_every_configuration_of_the_default_space_makes_real_training_arguments(tmp_path: Path) -> None:
    environment = cpu(training_argument_fields=REAL_FIELDS)
    space = build_space(tuning_request("m", 6), environment, workload(), {})
    assert space.size >= 4 * 2 * 2 * 4
    for item in space:
        fields = training_setup(item, environment, {"learning_rate": 1e-3}).training_arguments
        real = TrainingArguments(output_dir=str(tmp_path), **fields)
        assert real.per_device_train_batch_size * real.gradient_accumulation_steps == 6
        assert {
            name: SETTINGS[name].from_user(Context(environment, workload(), fields)) for name, _ in item.settings
        } == dict(item.settings)
        assert (real.bf16, real.optim, real.device.type) == (fields["bf16"], fields["optim"], "cpu")
        assert real.learning_rate == 1e-3


def test_the_settings_know_hugging_face_s_defaults(tmp_path: Path) -> None:
    real = TrainingArguments(output_dir=str(tmp_path), use_cpu=True).to_dict()
    environment = gpu(training_argument_fields=REAL_FIELDS)
    for name, setting in SETTINGS.items():
        if name != "pin_memory":  # real arguments for a CPU have it off
            assert setting.from_user(Context(environment, workload())) == setting.from_user(
                Context(environment, workload(), real)
            ), name


# The baseline's sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["per_device_train_batch_size", "gradient_accumulation_steps"])
@pytest.mark.parametrize("size", [0, "eight", 2.5, True, None])
def test_sizes_that_are_no_whole_numbers_are_refused(name: str, size: Any) -> None:
    both = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6}
    assert name in refusal(both | {name: size})


# Unknown fields -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "meant"), [("learning_rat", "'learning_rate'"), ("zzz", "")])
def test_a_field_that_this_transformers_does_not_know_is_refused(name: str, meant: str) -> None:
    check_fields({"bf16": True, "learning_rate": 1e-3}, cpu(), "mine.json")
    with pytest.raises(InvalidRequest) as caught:
        check_fields({"bf16": True, name: 1}, cpu(), "mine.json")
    assert str(caught.value).startswith("mine.json: ")
    assert f"{name!r}" in str(caught.value)
    assert meant in str(caught.value)
    assert caught.value.advice.strip()
