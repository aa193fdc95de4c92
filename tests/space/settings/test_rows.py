"""Settings row by row: what the user's own say, what a value sets and shows, where it is unavailable, what it needs."""

import math
from enum import Enum
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DataCollatorWithFlattening, TrainingArguments

from autotune.core import Configuration, Environment, Value
from autotune.space.settings import SETTINGS, Context, CostChange, Effect, Observed
from autotune.space.settings.attention import NAMES as ATTENTIONS
from autotune.space.settings.packing import COLLATOR
from autotune.space.setup import training_setup
from tests.makers import FIELDS, GIB, MIB, cpu, gpu, workload
from tests.space.settings.fakes import observed


def of(
    environment: Environment | None = None, arguments: dict[str, Any] | None = None, /, **workload_facts: Any
) -> Context:
    """On a CPU unless another environment is given."""
    return Context(environment or cpu(), workload(**workload_facts), arguments or {})


def loader(**facts: Any) -> Observed:
    return observed(loader=SimpleNamespace(**facts))


class Strategy(Enum):
    SEQUENTIAL = "sequential"


class Mixed:
    """A model that lets its experts be chosen."""

    config = SimpleNamespace(_experts_implementation="eager")

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True


class FSDPModule(torch.nn.Module):
    """As torch names what `fully_shard` makes of a module."""


def sharded(**plugin: Any) -> Observed:
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(**plugin))
    return observed(model=FSDPModule(), accelerator=SimpleNamespace(state=state))


def allocator(text: str, name: str = "PYTORCH_CUDA_ALLOC_CONF") -> Environment:
    return gpu(variables={name: text})


SAMPLES = cpu(training_argument_fields=(*FIELDS, "train_sampling_strategy"))
EMPTIES = gpu(training_argument_fields=(*FIELDS, "torch_empty_cache_steps"))
TWO = gpu(device_count=2)
PEFT = cpu(versions={"peft": "0.21.2"})
PACKERS = {"peft": "0.21.2", "bitsandbytes": "0.50"}
PACKS = gpu(versions=PACKERS, quantizations={"nf4": None, "fp4": "no kernel"})
BF16 = {"autocast": True, "linear_dtype": "bfloat16"}
CHOICES = {"experts": {"eager": None, "grouped_mm": "cannot dispatch"}, "expert": "eager"}
FLASH = {"attention": "sdpa", "attentions": dict.fromkeys(ATTENTIONS)}
PADS = {"collating": {"pad_to_multiple_of": None}, "sequence_length": 96}
MINE = {"user_objects": True}
COMPILES: dict[str, Any] = {"training_argument_fields": ("torch_compile",), "compile_backends": {"inductor": None}}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
GLOO = {"ddp_backend": "gloo"}
AUTOCAST = {"fp16": False, "bf16": True, "tf32": None}
GENERATES = {"steps_per_generation": 4}

FROM_USER: list[tuple[str, Context, Value]] = [
    ("attention", of(attention="eager"), "eager"),
    ("batching", of(SAMPLES, {"train_sampling_strategy": Strategy.SEQUENTIAL}), "sequential"),
    ("compile_backend", of(None, {"torch_compile_backend": "tvm"}), "tvm"),
    ("data_parallel_size", of(gpu(device_count=8), {"ddp_backend": "gloo"}), 1),
    ("expandable_segments", of(allocator("max_split_size_mb:128, expandable_segments:True")), True),
    ("fsdp", of(TWO, {"fsdp": True}), "full_shard"),
    ("fsdp", of(TWO, {"fsdp": ["shard_grad_op", "auto_wrap"]}), "shard_grad_op"),
    ("fsdp", of(TWO, {"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}), "shard_grad_op"),
    ("expandable_segments", of(allocator("backend:cudaMallocAsync,expandable_segments:True")), False),
    ("non_blocking", of(None, {"accelerator_config": {"non_blocking": True}}), True),
    ("padding", of(pad_to_multiple_of=8), "8"),
    ("pin_memory", of(gpu(), {"dataloader_pin_memory": False}), False),
    ("precision", of(None, {"bf16": True, "tf32": True}), "bf16"),
    ("prefetch_factor", of(None, {"dataloader_prefetch_factor": None}), 2),
    ("threads", of(cpu(threads=2)), 2),
]


@pytest.mark.parametrize(("name", "context", "value"), FROM_USER)
def test_the_user_s_own_means_a_value(name: str, context: Context, value: Value) -> None:
    assert SETTINGS[name].from_user(context) == value


def test_what_the_user_s_own_field_cannot_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        SETTINGS["prefetch_factor"].from_user(of(None, {"dataloader_prefetch_factor": 0}))


APPLIED: list[tuple[str, Value, Environment, Effect]] = [
    ("data_parallel_size", 4, gpu(threads=16), Effect(environment={"OMP_NUM_THREADS": "4"}, processes=4)),
    ("data_parallel_size", 4, cpu(), Effect(GLOO, environment={"OMP_NUM_THREADS": "1"}, processes=4)),
    ("experts", "batched_mm", cpu(), Effect(model_arguments={"experts_implementation": "batched_mm"})),
    ("fsdp", "full_shard", TWO, Effect({"fsdp": True, "fsdp_config": {"version": 2, "reshard_after_forward": True}})),
    ("precision", "tf32", gpu(), Effect({"fp16": False, "bf16": False, "tf32": True})),
    ("precision", "bf16_frozen", gpu(), Effect(AUTOCAST, model_arguments={"dtype": "bfloat16"})),
]


@pytest.mark.parametrize(("name", "value", "environment", "effect"), APPLIED)
def test_a_value_sets(name: str, value: Value, environment: Environment, effect: Effect) -> None:
    assert SETTINGS[name].apply(value, environment) == effect


IN_THE_ANSWER: list[tuple[dict[str, Value], Environment, dict[str, Any], dict[str, Any]]] = [
    ({"empty_cache_steps": "none"}, EMPTIES, {"torch_empty_cache_steps": 4}, {"torch_empty_cache_steps": None}),
    ({"empty_cache_steps": 16}, EMPTIES, {}, {"torch_empty_cache_steps": 16}),
    (
        {"data_parallel_size": 2, "fsdp": "none"},
        TWO,
        {"fsdp": "full_shard", "fsdp_config": {"min_num_params": 10}},
        {"fsdp": "", "fsdp_config": ...},
    ),
    (
        {"non_blocking": True},
        gpu(),
        {"accelerator_config": {"split_batches": False}},
        {"accelerator_config": {"split_batches": False, "non_blocking": True}},
    ),
    ({"data_parallel_size": 2}, cpu(), {}, {"gradient_accumulation_steps": 1, "use_cpu": True} | GLOO),
    ({"workers": 0, "prefetch_factor": 4}, cpu(), {}, {"dataloader_prefetch_factor": ...}),
    ({"workers": 0, "persistent_workers": True}, cpu(), {}, {"dataloader_persistent_workers": ...}),
]


@pytest.mark.parametrize(("settings", "environment", "user", "fields"), IN_THE_ANSWER)
def test_the_answer_joins_values_and_the_user_s_own(
    settings: dict[str, Value], environment: Environment, user: dict[str, Any], fields: dict[str, Any]
) -> None:
    """`...`: the field is left out."""
    setup = training_setup(Configuration.exact(8, 4, settings), environment, user)
    assert {name: setup.training_arguments.get(name, ...) for name in fields} == fields
    assert setup.processes == settings.get("data_parallel_size", 1)


@pytest.mark.parametrize(
    ("settings", "environment", "variables"),
    [
        ({"threads": 3, "data_parallel_size": 2}, cpu(threads=8), {"OMP_NUM_THREADS": "3"}),
        (
            {"expandable_segments": True},
            allocator("roundup_power2_divisions:[256:1,512:2],expandable_segments:False"),
            {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2],expandable_segments:True"},
        ),
    ],
)
def test_settings_and_the_user_s_own_share_a_variable(
    settings: dict[str, Value], environment: Environment, variables: dict[str, str]
) -> None:
    assert training_setup(Configuration.exact(8, 4, settings), environment, {}).process_environment == variables


SHOWN: list[tuple[str, Observed, Value | None]] = [
    ("batching", observed(arguments={"train_sampling_strategy": Strategy.SEQUENTIAL}), "sequential"),
    ("data_parallel_size", observed(arguments={"world_size": 4}), 4),
    ("expandable_segments", observed(allocator={"expandable_segments": True}), True),
    ("attention", observed(model=SimpleNamespace(config=SimpleNamespace(_attn_implementation="sdpa"))), "sdpa"),
    ("experts", observed(model=Mixed()), "eager"),
    ("fsdp", sharded(reshard_after_forward=True), "full_shard"),
    ("fsdp", sharded(reshard_after_forward=False), "shard_grad_op"),
    ("micro_batch_size", observed(loader=SimpleNamespace(), train_batch_size=6), None),
    # A Trainer that generates for several micro-steps at once loads them together.
    ("micro_batch_size", observed(loader=SimpleNamespace(total_batch_size=16), arguments=GENERATES), 4),
    ("non_blocking", observed(accelerator=SimpleNamespace()), None),
    ("packing", observed(collator=DataCollatorWithFlattening()), "flattening"),
    ("padding", observed(collator=SimpleNamespace(pad_to_multiple_of=16)), "16"),
    ("persistent_workers", loader(num_workers=2, persistent_workers=True), True),
    ("persistent_workers", loader(num_workers=0, persistent_workers=False), None),
    ("precision", observed(), "fp32"),
    ("precision", observed(tf32=True), "tf32"),
    ("precision", observed(**BF16, tf32=True), "bf16"),
    ("precision", observed(autocast=True, linear_dtype="float16"), "fp16"),
    ("precision", observed(linear_dtype="bfloat16"), "bf16_weights"),
    ("precision", observed(**BF16, frozen_dtypes={"float32"}), "bf16"),
    ("precision", observed(**BF16, frozen_dtypes={"bfloat16", "uint8"}), "bf16_frozen"),
    ("precision", observed(linear_dtype="float16"), "float16, autocast off"),
]


@pytest.mark.parametrize(("name", "shown", "value"), SHOWN)
def test_a_running_training_shows(name: str, shown: Observed, value: Value | None) -> None:
    assert SETTINGS[name].read_back(shown) == value


WEIGHS = {"parameter_bytes": GIB, "gradient_bytes": GIB // 2}

AVAILABLE: list[tuple[str, Value, Context]] = [
    ("attention", "flash_attention_3", of(gpu(compute_capability=(9, 0)), **FLASH)),
    ("compile", "default", of(gpu(**COMPILES, variables=ASYNC))),
    ("data_parallel_size", 2, of(TWO)),
    ("data_parallel_size", 2, of(cpu(cpu_count=2))),
    ("data_parallel_size", 2, of(gpu(device_count=2, host_free_bytes=MIB), **WEIGHS)),
    ("data_parallel_size", 1, of(cpu(host_free_bytes=MIB), **WEIGHS)),
    ("expandable_segments", False, of(allocator("backend:cudaMallocAsync"))),
    ("experts", "none", of(**MINE)),
    ("padding", "32", of(**PADS)),
    ("workers", 4, of(cpu(cpu_count=2))),
]

UNAVAILABLE: list[tuple[str, Value, Context, str]] = [
    ("attention", "flash_attention_2", of(gpu(), attentions={"flash_attention_2": "not installed"}), "not installed"),
    ("attention", "flash_attention_2", of(gpu(compute_capability=(7, 5)), **FLASH), "capability 8.0"),
    ("attention", "flex_attention", of(**FLASH), "GPU"),
    ("batching", "sequential", of(longest=(3,)), "no such strategy"),
    ("batching", "group_by_length", of(SAMPLES), "same length"),
    ("batching", "batch_rebalance", of(SAMPLES, longest=(3,)), "ranks"),
    ("data_parallel_size", 4, of(TWO), "more ranks than the 2 visible GPUs"),
    ("data_parallel_size", 4, of(cpu(cpu_count=2)), "2 CPU cores"),
    ("data_parallel_size", 4, of(cpu(cpu_count=8, device_count=2)), "2 devices of this search"),
    ("data_parallel_size", 2, of(cpu(host_free_bytes=GIB), **WEIGHS), "3.00 GiB of host memory (2 ranks x 1.50 GiB)"),
    ("data_parallel_size", 2, of(gpu(device_count=2, host_free_bytes=GIB), **WEIGHS, **MINE), "2 ranks x 1.00 GiB"),
    ("empty_cache_steps", 4, of(), "no cache"),
    ("compile", "reduce_overhead", of(gpu(**COMPILES, variables=ASYNC)), "cudaMallocAsync"),
    ("expandable_segments", True, of(), "GPU"),
    ("expandable_segments", True, of(allocator("backend:cudaMallocAsync")), "cudaMallocAsync"),
    ("experts", "eager", of(gpu()), "has no experts"),
    ("experts", "grouped_mm", of(gpu(), **CHOICES), "cannot dispatch"),
    ("fsdp", "full_shard", of(gpu(device_count=1)), "one is visible"),
    ("logging_nan_inf_filter", False, of(), "CPU"),
    ("lora", "8", of(), "pip install peft"),
    ("lora", "8", of(PEFT, task="image-classification"), "new head"),
    ("non_blocking", True, of(), "CPU"),
    ("packing", "flattening", of(collating={"packing": "no positions"}), "no positions"),
    ("padding", "64", of(**PADS), "96 tokens"),
    ("precision", "fp16", of(), "trains in fp32 on a CPU"),
    ("precision", "fp16", of(gpu(), **MINE, weights_dtype="bfloat16"), "bfloat16"),
    ("precision", "bf16", of(gpu(), **MINE, weights_dtype="float64"), "the weights of your model are float64"),
    ("quantization", "fp4", of(PACKS), "no kernel"),
    ("quantization", "nf4", of(gpu(versions={})), "install bitsandbytes"),
    ("threads", 4, of(cpu(cpu_count=2)), "2 CPU cores"),
    ("workers", 5, of(cpu(cpu_count=2)), "2 CPU cores"),
]


@pytest.mark.parametrize(("name", "value", "context"), AVAILABLE)
def test_a_value_is_available(name: str, value: Value, context: Context) -> None:
    assert SETTINGS[name].unavailable(value, context) is None


@pytest.mark.parametrize(("name", "value", "context", "reason"), UNAVAILABLE)
def test_a_value_is_unavailable_with_its_reason(name: str, value: Value, context: Context, reason: str) -> None:
    assert reason in str(SETTINGS[name].unavailable(value, context))


@pytest.mark.parametrize(
    ("name", "other", "active", "inactive"),
    [
        ("compile_backend", "compile", ["regional", "default"], ["none", "max_autotune"]),
        ("fsdp", "data_parallel_size", [2], [1]),
        ("lora_targets", "lora", ["8"], ["none"]),
        ("non_blocking", "pin_memory", [True], [False]),
        ("padding", "packing", ["none"], ["flattening"]),
        ("persistent_workers", "workers", [2], [0]),
        ("prefetch_factor", "workers", [1], [0]),
        ("quantization", "lora", ["8"], ["none"]),
    ],
)
def test_a_setting_is_active_only_with(name: str, other: str, active: list[Value], inactive: list[Value]) -> None:
    assert SETTINGS[name].active_if is not None
    decider, means = SETTINGS[name].active_if
    assert decider == other
    assert [means(value) for value in active + inactive] == [True] * len(active) + [False] * len(inactive)


@pytest.mark.parametrize(
    ("name", "more", "less"),
    [
        ("fsdp", "none", "shard_grad_op"),
        ("lora", "64", "8"),
        ("lora_targets", "all_linear", "attention"),
        ("micro_batch_size", 8, 4),
        ("padding", "64", "8"),
        ("quantization", "none", "nf4"),
    ],
)
def test_a_value_needs_more_memory_than(name: str, more: Value, less: Value) -> None:
    assert SETTINGS[name].costs.needs_at_least_as_much(more, less)
    assert not SETTINGS[name].costs.needs_at_least_as_much(less, more)


def test_ranks_on_a_cpu_are_expected_to_share_its_threads() -> None:
    change = SETTINGS["data_parallel_size"].costs.change
    assert change(2, of()) == CostChange(math.log(2), math.log(2))
    assert change(2, of(gpu())) == change(1, of()) == CostChange()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("experts", "deepgemm", "not one of"),  # it fetches its kernels from the hub while it trains
        ("micro_batch_size", 0, "whole number"),
    ],
)
def test_a_value_that_cannot_be_read(name: str, text: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SETTINGS[name].read(text)


def test_flash_attention_takes_numbers_of_16_bits_only() -> None:
    forbidden = SETTINGS["attention"].forbidden["precision"]
    for value, precision in product(ATTENTIONS, ("fp32", "tf32", "bf16")):
        assert bool(forbidden(value, precision)) == (value.startswith("flash") and precision != "bf16")


def test_what_else_a_value_means() -> None:
    setting = SETTINGS["precision"]
    assert setting.forbidden["lora"]("bf16_frozen", "none")
    assert setting.forbidden["lora"]("bf16_frozen", "16") is None
    assert setting.forbidden["lora"]("bf16", "none") is None
    assert setting.learns_alike("bf16_frozen", "bf16")
    assert SETTINGS["lora"].costs.spares_gradients("8")
    assert [SETTINGS["empty_cache_steps"].costs.period(value) for value in ("none", 16)] == [1, 16]
    assert not setting.learns_alike("bf16_frozen", "bf16_weights")
    assert setting.learning.differs("bf16_weights")
    assert not setting.learning.differs("bf16")


def test_a_model_of_the_user_s_own_in_16_bits_stays_so() -> None:
    setting = SETTINGS["precision"]
    context = of(gpu(precisions=dict.fromkeys(setting.values)), **MINE, weights_dtype="bfloat16")
    assert {value for value in setting.values if setting.unavailable(value, context) is None} == {
        "bf16",
        "bf16_weights",
    }


def test_names_of_transformers(tmp_path: object) -> None:
    """Of a class that a setting knows by its name, of a default, and of a field inside another."""
    assert DataCollatorWithFlattening.__name__ == COLLATOR
    fields = SETTINGS["non_blocking"].apply(True, gpu()).training_arguments
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **fields)
    assert arguments.accelerator_config.non_blocking is True
    assert arguments.logging_nan_inf_filter is SETTINGS["logging_nan_inf_filter"].from_user(of(gpu()))
