"""What an optimizer's step makes: states by the class itself where it can be traced, else by its library's rule."""

import warnings
from pathlib import Path

import pytest
import torch

from autotune.memory.envelope import peak_lines
from autotune.memory.trace import STATES, UPDATE, MemoryTrace
from autotune.probe.device.tryout import made_optimizer
from autotune.probe.trace.optimizer import trace_update
from tests.probe.probes import bitsandbytes_steps_on_cpu


def outline() -> torch.nn.Module:
    with torch.device("meta"):
        return model()


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Embedding(300, 64), torch.nn.Linear(64, 128), torch.nn.LayerNorm(128))


PARAMETERS = sum(parameter.numel() for parameter in model().parameters())


def tape_of(name: str, folder: Path, foreach: bool = True) -> MemoryTrace:
    told = trace_update(outline(), {"optim": name}, folder, foreach=foreach)
    assert "error" not in told, told
    return MemoryTrace.from_dict(told["tape"])


def states_of(tape: MemoryTrace) -> float:
    return sum(tensor.fixed for tensor in tape.tensors if tensor.kind == STATES)


def beside_states(tape: MemoryTrace) -> float:
    """The most that a later step needs beyond the states."""
    return max(sum(line.fixed) for line in peak_lines(tape)[UPDATE]) - states_of(tape)


@pytest.mark.parametrize("name", ["adamw_torch", "adamw_torch_fused"])
def test_adamw_keeps_eight_bytes_for_each_parameter(name: str, tmp_path: Path) -> None:
    steps = 4 * len(list(model().parameters()))
    assert states_of(tape_of(name, tmp_path)) in (8 * PARAMETERS, 8 * PARAMETERS + steps)


def test_sgd_keeps_nothing_and_adafactor_next_to_nothing_for_matrices(tmp_path: Path) -> None:
    assert states_of(tape_of("sgd", tmp_path)) == 0
    matrices, vectors = (300 + 64) + (64 + 128), 3 * 128
    assert 4 * (matrices + vectors) <= states_of(tape_of("adafactor", tmp_path)) < 4 * (matrices + vectors) + 200


def test_all_tensors_at_once_needs_a_copy_of_them_and_the_fused_kernel_none(tmp_path: Path) -> None:
    largest = 4 * 300 * 64
    decayed = largest + 4 * 64 * 128
    assert decayed <= beside_states(tape_of("adamw_torch", tmp_path)) < 1.1 * decayed
    assert beside_states(tape_of("adamw_torch", tmp_path, foreach=False)) < 2.1 * largest
    assert beside_states(tape_of("adamw_torch_fused", tmp_path)) < 2000


@pytest.mark.parametrize(
    "name",
    [
        *("adamw_bnb_8bit", "lion_8bit", "ademamix_8bit", "rmsprop_bnb_8bit"),
        *("paged_adamw_32bit", "lion_32bit", "ademamix", "rmsprop_bnb"),
    ],
)
@pytest.mark.skipif(not bitsandbytes_steps_on_cpu(), reason="this bitsandbytes steps on no CPU")
def test_the_states_of_bitsandbytes_are_those_that_it_makes(name: str, tmp_path: Path) -> None:
    import bitsandbytes

    real = model()
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.register_module_override(real[0], "weight", {"optim_bits": 32})
    optimizer = made_optimizer(name, real, "cpu")
    real(torch.randint(300, (2, 4))).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a CPU there is nothing to page
        optimizer.step()
    storages = {
        item.untyped_storage().data_ptr(): item.untyped_storage().nbytes()
        for state in optimizer.state.values()
        for item in state.values()
        if isinstance(item, torch.Tensor)
    }
    assert states_of(tape_of(name, tmp_path)) == sum(storages.values())


@pytest.mark.parametrize("name", ["adamw_torch_8bit", "galore_adamw", "stable_adamw"])
def test_states_that_cannot_be_traced_are_assumed_to_be_adamws_and_it_is_said(name: str, tmp_path: Path) -> None:
    told = trace_update(outline(), {"optim": name}, tmp_path, foreach=True)
    assert states_of(MemoryTrace.from_dict(told["tape"])) == states_of(tape_of("adamw_torch", tmp_path))
    assert told["states_of"] == name
    assert "states_of" not in trace_update(outline(), {"optim": "sgd"}, tmp_path, foreach=True)


def test_states_of_16_bit_weights_have_16_bits(tmp_path: Path) -> None:
    told = trace_update(outline().to(torch.bfloat16), {"optim": "adamw_torch"}, tmp_path, foreach=True)
    steps = 4 * len(list(model().parameters()))
    assert states_of(MemoryTrace.from_dict(told["tape"])) in (4 * PARAMETERS, 4 * PARAMETERS + steps)
