"""The user's own TrainingArguments, built once before anything is searched."""

from typing import Any

import pytest

from autotune.workload.arguments import check_arguments
from tests.makers import refusal_of


def refusal(**fields: Any) -> str:
    return refusal_of(lambda: check_arguments(fields))


# Others: tests/bad_inputs.py.
@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", True), ("lr_scheduler_kwargs", "fast"), ("accelerator_config", "none.json")]
)
def test_a_value_that_transformers_refuses_is_named_by_its_field(name: str, value: Any) -> None:
    assert name in refusal(**{name: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"bf16": True, "tf32": True, "torch_compile": True},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 10},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}, "warmup_steps": 0.1},
        {"fsdp": "full_shard", "fsdp_config": {"min_num_params": 10}, "ddp_backend": "nccl"},
        {"fsdp": ["shard_grad_op", "auto_wrap"]},
        {"report_to": ["wandb"], "push_to_hub": True, "label_names": ["labels"], "debug": []},
    ],
)
def test_arguments_that_are_fine_are_taken_whatever_this_device_can_do(fields: dict[str, Any]) -> None:
    check_arguments(fields)
