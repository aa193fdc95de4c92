"""Values of models made without storage: drawn layer by layer, or left out where another rank has them."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from autotune.core import Environment, Workload
from autotune.workload.model.adapters import in_four_bits
from autotune.workload.model.build import build_model, plain_config
from tests.workload.model.test_adapters import FOUR_BITS, unpacked
from tests.workload.model.test_build import workload_of

MINIS = ("gpt2-mini", "llama-mini", "bert-mini", "t5-mini", "moe-mini", "vit-mini")


def tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def without_a_state(model: Any) -> dict[str, torch.Tensor]:
    """The buffers that no state dict has."""
    state = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name not in state}


@pytest.mark.parametrize("name", MINIS)
def test_the_first_of_sharding_ranks_has_the_whole_model_with_weights_drawn_alike(name: str) -> None:
    workload = workload_of(name)
    torch.manual_seed(1)
    whole, made = build_model(workload), build_model(workload, sharding_rank=0)
    assert [name for name, _ in tensors(made)] == [name for name, _ in tensors(whole)]
    for (name, value), (_, usual) in zip(tensors(made), tensors(whole), strict=True):
        assert (value.shape, value.dtype, value.device.type) == (usual.shape, usual.dtype, "cpu")
        assert value.detach().isfinite().all(), name
        if value.numel() > 1000 and value.is_floating_point():
            assert float(value.detach().std()) == pytest.approx(float(usual.detach().std()), rel=0.1), name
    buffers = dict(whole.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in made.named_buffers())
    assert made.training


@pytest.mark.parametrize("name", MINIS)
def test_another_of_them_has_room_for_the_same_parameters_and_buffers_with_values(name: str) -> None:
    workload = workload_of(name)
    first, other = (build_model(workload, sharding_rank=rank) for rank in (0, 1))
    assert [(name, value.shape, value.dtype) for name, value in tensors(other)] == [
        (name, value.shape, value.dtype) for name, value in tensors(first)
    ]
    kept, expected = without_a_state(other), without_a_state(first)
    assert kept.keys() == expected.keys()
    assert all(torch.equal(buffer, expected[name]) for name, buffer in kept.items())
    places = [parameter.data_ptr() for parameter in other.parameters()]
    assert len({*places}) == len(places), "by which the optimizer finds its shards"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_room_for_weights_takes_no_memory() -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 8}
    config = AutoConfig.for_model("llama", vocab_size=1000, **sizes)
    workload = Workload("llama", "causal-lm", model_config=plain_config(config))
    before = resident_bytes()
    model = build_model(workload, sharding_rank=1)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert size > 200 << 20
    assert resident_bytes() - before < size / 10


def test_local_weights_are_read_by_the_first_rank_alone(tmp_path: Path) -> None:
    workload = workload_of("llama-mini")
    torch.manual_seed(3)
    saved = build_model(workload)
    saved.save_pretrained(tmp_path)
    first, other = (build_model(workload, weights=str(tmp_path), sharding_rank=rank) for rank in (0, 1))
    assert all(torch.equal(value, saved.get_parameter(name)) for name, value in first.named_parameters())
    assert [value.shape for value in other.parameters()] == [value.shape for value in saved.parameters()]


@pytest.mark.parametrize("name", ["gpt2-mini", "moe-mini"])
def test_local_weights_are_packed_as_they_are_read(tmp_path: Path, environment: Environment, name: str) -> None:
    if reason := environment.quantizations["nf4"]:
        pytest.skip(reason)
    workload = workload_of(name)
    torch.manual_seed(3)
    whole = build_model(workload)
    whole.save_pretrained(tmp_path)
    packed = build_model(workload, weights=str(tmp_path), model_arguments={"quantization_config": FOUR_BITS})
    again = in_four_bits(copy.deepcopy(whole), FOUR_BITS)
    assert packed.is_loaded_in_4bit
    assert packed.training
    assert not hasattr(packed, "hf_device_map")
    values = dict(again.named_parameters())
    for part, value in packed.named_parameters():
        assert type(value) is type(values[part]), part
        assert torch.equal(unpacked(value), unpacked(values[part])), part
