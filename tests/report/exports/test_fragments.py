"""axolotl's and LLaMA-Factory's lines hold keys that these tools know, with the values of the answer; nothing is dropped."""

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

NEWER = {"activation_checkpointing", "activation_checkpointing_kwargs"}


def test_the_class_of_a_task_is_transformers_own() -> None:
    for task, (name, _) in _AUTO_CLASSES.items():
        assert auto_class(task) == name
    assert auto_class("") == "AutoModel"


def values(of: Answer, name: str) -> dict[str, Any]:
    read = yaml.safe_load(exports(of)[name])
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize("kind", EVERY)
def test_keys_are_those_of_the_tools_and_no_field_of_the_answer_is_lost(kind: str) -> None:
    """A field is under its own key, under the tool's (pinned by golden files), or in a comment line."""
    of, files = EVERY[kind], exports(EVERY[kind])
    axolotl, llama_factory = values(of, "axolotl.yaml"), values(of, "llama_factory.yaml")
    assert set(axolotl) <= AXOLOTL
    assert set(axolotl.get("fsdp_config", {})) <= FSDP
    assert axolotl["optimizer"] in list(OptimizerNames)
    training = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)} - NEWER
    assert set(llama_factory) <= LLAMA_FACTORY | training
    assert llama_factory["flash_attn"] in LLAMA_FACTORY_ATTENTION
    assert llama_factory["disable_gradient_checkpointing"] is not of.checkpointing
    elsewhere = {
        *("activation_checkpointing", "gradient_checkpointing", "activation_checkpointing_kwargs"),
        *("bf16", "fp16", "deepspeed", "fsdp", "fsdp_config", "use_liger_kernel", "use_cpu", "optim"),
        *("per_device_train_batch_size", "train_sampling_strategy"),
    }
    for name in ("axolotl.yaml", "llama_factory.yaml", "trl.yaml"):
        read = yaml.safe_load(files[name])
        assert (read["bf16"], read["fp16"]) == (of.mixed_precision == "bf16", False)
        for field, value in of.fields.items():
            is_missing = f"# no counterpart here: {field} = {json.dumps(value)}" in files[name]
            assert field in elsewhere or is_missing or read[field] == value, (name, field)


def test_a_mode_of_compiling_that_axolotl_refuses_is_a_comment_in_its_file_alone() -> None:
    for mode, known in (("reduce-overhead", True), ("max-autotune-no-cudagraphs", False)):
        of = answer({"torch_compile": True, "torch_compile_mode": mode})
        assert values(of, "axolotl.yaml").get("torch_compile_mode") == (mode if known else None)
        line = f'# no counterpart here: torch_compile_mode = "{mode}"'
        assert (line in exports(of)["axolotl.yaml"]) is not known
        assert values(of, "llama_factory.yaml")["torch_compile_mode"] == mode


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
    read = values(EVERY["on a GPU"], "axolotl.yaml")
    assert read["plugins"] == ["axolotl.integrations.liger.LigerPlugin"]
    kernels = pytest.importorskip("liger_kernel.transformers", reason="liger-kernel is not installed")
    defaults = inspect.signature(kernels.apply_liger_kernel_to_llama).parameters
    for name, key in (("rope", "rope"), ("rms_norm", "rms_norm"), ("swiglu", "glu_activation")):
        assert read[f"liger_{key}"] is defaults[name].default


def test_liger_s_kernels_are_those_that_were_measured() -> None:
    config = {"fused_linear_cross_entropy": False, "rms_norm": False, "cross_entropy": True, "tiled": True}
    of = answer(ON_A_GPU | {"liger_kernel_config": config})
    read = values(of, "axolotl.yaml")
    kernels = {
        name: read[f"liger_{name}"] for name in ("rope", "rms_norm", "cross_entropy", "fused_linear_cross_entropy")
    }
    assert kernels == {"rope": True, "rms_norm": False, "cross_entropy": True, "fused_linear_cross_entropy": False}
    for name in ("axolotl.yaml", "llama_factory.yaml"):
        (missing,) = [line for line in exports(of)[name].splitlines() if "liger_kernel_config" in line]
        assert missing.startswith("# no counterpart here: liger_kernel_config")


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
    assert [name for name, text in files.items() if "GPT2LMHeadModel" in text] == ["accelerate_loop.py"]
    loop = files["accelerate_loop.py"]
    assert loop.count("GPT2LMHeadModel") == 1, "its first line names the model"
    assert "from_pretrained" not in loop
    assert "def your_model():\n    raise NotImplementedError" in loop
    assert "--model_name_or_path YOURS" in files["trl.yaml"]
