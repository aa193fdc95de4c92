"""axolotl's and LLaMA-Factory's lines hold keys that these tools know, with the values of the answer; nothing is dropped."""

import ast
import dataclasses
import inspect
import json
from typing import Any

import pytest
import yaml
from transformers import Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames

from autotune.report.exports import Answer, auto_class, exports
from autotune.workload.model.build import _AUTO_CLASSES
from tests.report.exports.answers import EVERY, FULL, ON_A_GPU, answer
from tests.report.exports.keys import AXOLOTL, FSDP, LLAMA_FACTORY, LLAMA_FACTORY_ATTENTION

KINDS = pytest.mark.parametrize("kind", EVERY)
NEWER = {"activation_checkpointing", "activation_checkpointing_kwargs"}


def test_the_class_of_a_task_is_transformers_own() -> None:
    for task, (name, _) in _AUTO_CLASSES.items():
        assert auto_class(task) == name
    assert auto_class("") == "AutoModel"


def values(of: Answer, name: str) -> dict[str, Any]:
    read = yaml.safe_load(exports(of)[name])
    assert isinstance(read, dict)
    return read


@KINDS
def test_axolotl_knows_every_key_and_gets_sizes_precision_and_checkpointing(kind: str) -> None:
    of, read = EVERY[kind], values(EVERY[kind], "axolotl.yaml")
    assert set(read) <= AXOLOTL
    assert set(read.get("fsdp_config", {})) <= FSDP
    assert read["optimizer"] in list(OptimizerNames)
    assert (read["micro_batch_size"], read["gradient_accumulation_steps"]) == (of.micro_batch_size, of.accumulation)
    assert (read["bf16"], read["fp16"]) == (of.mixed_precision == "bf16", False)
    assert read["gradient_checkpointing"] is of.checkpointing


@KINDS
def test_llama_factory_knows_every_key_and_gets_sizes_precision_and_checkpointing(kind: str) -> None:
    of, read = EVERY[kind], values(EVERY[kind], "llama_factory.yaml")
    training = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)} - NEWER
    assert set(read) <= LLAMA_FACTORY | training
    assert read["flash_attn"] in LLAMA_FACTORY_ATTENTION
    assert read["per_device_train_batch_size"] * read["gradient_accumulation_steps"] == 12
    assert (read["bf16"], read["disable_gradient_checkpointing"]) == (
        of.mixed_precision == "bf16",
        not of.checkpointing,
    )


@KINDS
def test_every_field_of_the_answer_is_in_each_file_or_named_as_missing(kind: str) -> None:
    """Under its own key, its key in that tool (tested above), or in a comment line."""
    of, files = EVERY[kind], exports(EVERY[kind])
    elsewhere = {
        *("activation_checkpointing", "gradient_checkpointing", "activation_checkpointing_kwargs"),
        *("bf16", "fp16", "deepspeed", "fsdp", "fsdp_config", "use_liger_kernel", "use_cpu", "optim"),
        *("per_device_train_batch_size", "train_sampling_strategy"),
    }
    for name in ("axolotl.yaml", "llama_factory.yaml", "trl.yaml"):
        read = yaml.safe_load(files[name])
        for field, value in of.fields.items():
            is_missing = f"# no counterpart here: {field} = {json.dumps(value)}" in files[name]
            assert field in elsewhere or is_missing or read[field] == value, (name, field)


@pytest.mark.parametrize(("bf16", "pure"), [(True, False), (False, True)])
def test_weights_in_16_bits_are_pure_where_there_is_no_autocast(bf16: bool, pure: bool) -> None:
    of = answer(FULL | {"bf16": bf16}, model_arguments={"dtype": "bfloat16"})
    assert values(of, "llama_factory.yaml").get("pure_bf16", False) is pure
    assert values(of, "axolotl.yaml").get("bfloat16", False) is pure
    assert "measured with" not in exports(of)["axolotl.yaml"]


def test_newer_ways_of_checkpointing_are_named_where_a_tool_has_none() -> None:
    of = answer(FULL | {"activation_checkpointing_kwargs": {"every_n_layers": 2, "offload": True}})
    for name in ("axolotl.yaml", "llama_factory.yaml"):
        assert "# no counterpart here: checkpointing every_n_layers = 2" in exports(of)[name]
        assert "gradient_checkpointing_kwargs" not in values(of, name)
    call = "model.activation_checkpointing_enable(every_n_layers=2, offload=True)"
    assert call in exports(of)["accelerate_loop.py"]


def test_liger_s_kernels_are_those_that_transformers_switches_on() -> None:
    """The defaults of Liger's own functions for a model, as far as the package is here."""
    told = values(EVERY["on a GPU"], "axolotl.yaml")
    assert told["plugins"] == ["axolotl.integrations.liger.LigerPlugin"]
    kernels = pytest.importorskip("liger_kernel.transformers", reason="liger-kernel is not installed")
    defaults = inspect.signature(kernels.apply_liger_kernel_to_llama).parameters
    for name, key in (("rope", "rope"), ("rms_norm", "rms_norm"), ("swiglu", "glu_activation")):
        assert told[f"liger_{key}"] is defaults[name].default


@pytest.mark.parametrize("fused", [True, False])
def test_axolotl_is_told_which_of_liger_s_kernels_were_measured(fused: bool) -> None:
    config = {"fused_linear_cross_entropy": fused, "rms_norm": False, "cross_entropy": not fused, "tiled": True}
    of = answer(ON_A_GPU | {"liger_kernel_config": config})
    told = values(of, "axolotl.yaml")
    said = {name: told[f"liger_{name}"] for name in ("rope", "rms_norm", "cross_entropy", "fused_linear_cross_entropy")}
    assert said == {"rope": True, "rms_norm": False, "cross_entropy": not fused, "fused_linear_cross_entropy": fused}
    assert set(told) <= AXOLOTL
    missing = [line for line in exports(of)["axolotl.yaml"].splitlines() if "liger_kernel_config" in line]
    assert missing == ["# no counterpart here: liger_kernel_config tiled = true"]


def test_torchs_switches_are_called_in_the_loop_and_named_where_a_tool_has_no_word_for_them() -> None:
    files = exports(answer(switches={"enable_flash_sdp": True, "enable_math_sdp": False}))
    loop = files["accelerate_loop.py"]
    compile(loop, "accelerate_loop.py", "exec")
    assert (
        "\nimport torch\ntorch.backends.cuda.enable_flash_sdp(True)\ntorch.backends.cuda.enable_math_sdp(False)\n"
        in loop
    )
    for name in ("trl.yaml", "axolotl.yaml", "llama_factory.yaml"):
        assert "no counterpart here: torch.backends.cuda.enable_math_sdp(False)" in files[name]


def test_no_file_loads_by_name_what_no_name_loads() -> None:
    files = exports(answer(model="GPT2LMHeadModel", auto_class=""))
    told = {name: text for name, text in files.items() if "GPT2LMHeadModel" in text}
    assert list(told) == ["accelerate_loop.py"]  # whose first line says for which model
    loop = ast.parse(told["accelerate_loop.py"])
    assert told["accelerate_loop.py"].count("GPT2LMHeadModel") == 1
    own = next(item for item in loop.body if isinstance(item, ast.FunctionDef) and item.name == "your_model")
    assert isinstance(own.body[0], ast.Raise)
    assert "from_pretrained" not in told["accelerate_loop.py"]
    assert "--model_name_or_path YOURS" in files["trl.yaml"]
