"""Adapters: trained for real in a probe, and their memory known before."""

import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig
from transformers.pytorch_utils import Conv1D

from autotune.core import Configuration, Environment, Measurement, Workload
from autotune.memory.estimate import memory_model
from autotune.memory.keys import UpdateKey, update_key, wanted_traces
from autotune.probe.order import Order
from autotune.probe.process.answers import ask
from autotune.probe.process.launcher import ProbeHost
from autotune.workload.data.synthetic import SyntheticSamples
from autotune.workload.model.adapters import in_four_bits
from autotune.workload.model.build import build_model, count_parameters, model_outline, plain_config
from tests.probe.probes import configuration, make_order


@pytest.mark.parametrize("model", ["bert-mini", "moe-mini"])
def test_an_adapter_is_trained_instead_of_the_weights(train: Callable[..., Measurement], model: str) -> None:
    train(model, lora="8")


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": "16", "lora_targets": "attention", "checkpointing": "full"},
        {"lora": "8", "precision": "bf16_frozen", "optimizer": "adamw_bnb_8bit"},
        {"lora": "none", "lora_targets": "attention"},
    ],
    ids=str,
)
def test_an_adapter_goes_with_the_other_settings(
    train: Callable[..., Measurement], environment: Environment, settings: dict[str, str]
) -> None:
    if reason := environment.optimizers.get(settings.get("optimizer", "adamw_torch")):
        pytest.skip(reason)
    train("gpt2-mini", **settings)


def test_frozen_weights_in_four_bits_train_an_adapter(
    train: Callable[..., Measurement], environment: Environment
) -> None:
    if reason := environment.quantizations["nf4"]:
        pytest.skip(reason)
    train("llama-mini", lora="8", quantization="nf4", precision="bf16")


FOUR_BITS: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "float32"}


class Living(TorchDispatchMode):
    """Notes how many bytes of tensors lived at once; those without storage take none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tree_leave in tree_leaves(made):
            if isinstance(tree_leave, torch.Tensor) and tree_leave.device.type != "meta":
                self.note(tree_leave.untyped_storage())
        return made

    def note(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def freed(_: Any) -> None:
            del self.known[key]
            self.now -= size

        self.known[key] = weakref.ref(storage, freed)
        self.now += size
        self.most = max(self.most, self.now)


# Not llama-mini: of rows that are no multiple of 64 long, bitsandbytes unpacks others on a CPU than it packed.
@pytest.mark.parametrize("model", ["gpt2-mini", "moe-mini"])
def test_a_model_made_layer_by_layer_is_the_whole_one_packed(
    workload_of: Callable[..., Workload], environment: Environment, model: str
) -> None:
    """The same tensors of the same kinds, buffers of the same values, weights drawn alike; and it computes the same."""
    if reason := environment.quantizations["nf4"]:
        pytest.skip(reason)
    workload = workload_of(model, sequence_length=16)
    torch.manual_seed(1)
    whole, packed = build_model(workload), build_model(workload, model_arguments={"quantization_config": FOUR_BITS})
    again = in_four_bits(copy.deepcopy(whole), FOUR_BITS)
    assert packed.is_loaded_in_4bit
    assert described(packed) == described(again)
    buffers = dict(again.named_buffers())
    assert all(torch.equal(item, buffers[name]) for name, item in packed.named_buffers())
    values = {name: unpacked(item) for name, item in packed.named_parameters()}
    for name, one in again.named_parameters():
        old, new = unpacked(one), values[name]
        assert new.isfinite().all(), name
        assert old.numel() < 1000 or float(new.std()) == pytest.approx(float(old.std()), rel=0.1), name
    # Values that four bits can hold are packed to themselves: from the whole model with these the packed one must come.
    columns = {name for name, item in whole.named_modules() if isinstance(item, Conv1D)}
    turned = {
        name: value.t() if name.rpartition(".")[0] in columns and value.dim() == 2 else value
        for name, value in values.items()
    }
    whole.load_state_dict(turned, strict=False)
    sample = SyntheticSamples(packed.config, workload.task, workload.sequence_length, 2, seed=0)
    batch = {name: torch.stack([sample[0][name], sample[1][name]]) for name in sample[0]}
    losses = [loss_of(item, batch) for item in (packed, in_four_bits(whole, FOUR_BITS))]
    assert torch.equal(*losses)
    assert losses[0].isfinite()


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """As it is trained: bitsandbytes computes otherwise on a CPU, and not with all shapes, where nothing is trained."""
    torch.manual_seed(2)
    loss: torch.Tensor = model.train()(**batch).loss
    return loss.detach()


def described(model: Any) -> dict[str, tuple[Any, ...]]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: (type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)
        for name, tensor in tensors.items()
    }


def unpacked(one: Any) -> torch.Tensor:
    if type(one).__name__ != "Params4bit":
        return one.detach()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(one.data, one.quant_state)


def test_a_model_in_four_bits_is_never_whole(environment: Environment) -> None:
    if reason := environment.quantizations["nf4"]:
        pytest.skip(reason)
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 4}
    config = AutoConfig.for_model("llama", vocab_size=256, num_key_value_heads=4, **sizes)
    workload = Workload("llama", "causal-lm", model_config=plain_config(config))
    size = count_parameters(model_outline(config, "causal-lm"))[1]
    with Living() as living:
        model = build_model(workload, model_arguments={"quantization_config": FOUR_BITS})
    assert 0.1 * size < living.now < 0.2 * size, "of what is packed, an eighth is left"
    assert living.most < 0.35 * size
    assert model.is_loaded_in_4bit


@pytest.fixture
def traced(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> Callable[..., Any]:
    """`traced([one, two])`: the memory model of these configurations of a small Llama."""

    def traced(configurations: list[Configuration]) -> Any:
        workload = workload_of("llama-mini", sequence_length=64)
        wanted = wanted_traces(configurations, environment, {}, workload.task)
        order = Order(kind="trace", folder=str(tmp_path), deadline_s=240, workload=workload, request=wanted.request())
        return memory_model(ask(host, order), wanted, environment, {})

    return traced


@pytest.mark.nightly
def test_only_the_adapter_has_gradients_and_states(traced: Callable[..., Any], environment: Environment) -> None:
    small, large, whole = (configuration(4, lora=rank) for rank in ("8", "64", "none"))
    model = traced([small, large, whole])
    assert not model.failures
    peaks = [model.peak(item) for item in (small, large, whole)]
    splits = [peak.split for peak in peaks]
    adapters = [split.weights - splits[2].weights for split in splits[:2]]
    assert adapters[1] == 8 * adapters[0] > 0
    for split, adapter in zip(splits[:2], adapters, strict=True):
        # AdamW keeps two float32 for each value, and a counter for each tensor.
        assert 2 * adapter <= split.optimizer_states < 2.1 * adapter
        assert split.gradients <= adapter
    assert splits[2].optimizer_states >= 2 * 0.9 * splits[2].weights
    assert peaks[0].device_bytes < peaks[1].device_bytes < peaks[2].device_bytes
    assert update_key(small, environment, {}) != update_key(whole, environment, {}) == UpdateKey("adamw_torch")


def test_what_cannot_be_traced_says_so(traced: Callable[..., Any]) -> None:
    four_bits = configuration(4, lora="8", quantization="nf4")
    assert "four-bit" in next(iter(traced([four_bits]).failures.values()))


def test_an_adapter_is_evaluated_and_saved_in_the_sanity_check(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    workload = workload_of("gpt2-mini", sequence_length=16)
    order = make_order(tmp_path, environment, asked=configuration(2, lora="8"), workload=workload, kind="sanity_check")
    told = ask(host, order)
    assert not told["problems"]
    assert told["eval_batch_size"]
    assert 0 < told["checkpoint_bytes"] < workload.parameter_bytes, "the adapter alone, with its optimizer's states"
