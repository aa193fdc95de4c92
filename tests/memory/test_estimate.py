"""Peaks of configurations from traces by hand: phases, accumulation, optimizer, rounding and what is not traced."""

import json
from dataclasses import replace

import pytest

from autotune.core import Configuration, Environment
from autotune.memory.estimate import (
    CUBLAS_WORKSPACE,
    FORWARD_BACKWARD,
    OPTIMIZER_STEP,
    TYPICAL_CONTEXT,
    MemoryModel,
    NotTraced,
    memory_model,
)
from autotune.memory.keys import UpdateKey, step_key, wanted_traces
from autotune.memory.peak import MemoryPeak
from autotune.memory.trace import FIRST, FURTHER, UPDATE, UPDATE_FIRST
from autotune.space.settings import SETTINGS

MIB = 2**20
CPU = Environment("cpu", "a CPU", 2**33, 2**33, training_argument_fields=("activation_checkpointing",))
GPU = Environment(
    "cuda:0", "a GPU", 2**34, 2**34, compute_capability=(8, 0), training_argument_fields=("activation_checkpointing",)
)


def configuration(micro: int = 4, accumulation: int = 1, **settings: object) -> Configuration:
    memory = {"checkpointing": "none", "precision": "fp32", "optimizer": "adamw_torch", "workers": 0, **settings}
    return Configuration(micro, accumulation, settings=tuple(memory.items()))  # type: ignore[arg-type]


def step(size: int, whole: int = 100) -> dict[str, object]:
    """An activation of `size` MiB a sample and a gradient of `whole` MiB; then the same beside the gradient."""
    sizes = [size * MIB, whole * MIB, size * MIB, whole * MIB]
    kinds = ["activations", "gradients", "activations", "temporary"]
    segments = [[FIRST, None, 0, False, [0, 1, ~0]], [FURTHER, None, 0, False, [2, 3, ~3, ~2]]]
    return {"sizes": sizes, "kinds": kinds, "segments": segments}


def answer(temporary: int = 1, **more: object) -> dict[str, object]:
    update = {
        "sizes": [200 * MIB, temporary * MIB, temporary * MIB],
        "kinds": ["optimizer_states", "temporary", "temporary"],
        "segments": [[UPDATE_FIRST, None, 0, False, [0, 1, ~1]], [UPDATE, None, 0, False, [2, ~2]]],
    }
    tapes = {size: step(10 * size) for size in (1, 2, 3)}
    units = {"layer": 0, "outside": 0, "all": 0, "width": 0}
    answered = {"weights": [100 * MIB], "batch": [MIB], "counts": [], "notes": [], "updates": [{"tape": update}]}
    return {**answered, "units": units, "steps": [{"tapes": tapes, "whole": True}], **more}


def model(environment: Environment = CPU, answered: dict[str, object] | None = None, **more: object) -> MemoryModel:
    wanted = wanted_traces([configuration()], environment, {})
    return memory_model(answered or answer(), wanted, environment, {}, **more)  # type: ignore[arg-type]


def test_one_micro_step_needs_weights_states_activations_and_the_gradient_it_makes() -> None:
    peak = model().peak(configuration(4, 1))
    assert peak.where == FORWARD_BACKWARD
    assert peak.split.to_dict() == {
        "weights": 100 * MIB,
        "gradients": 100 * MIB,
        "optimizer_states": 200 * MIB,
        "activations": 44 * MIB,
        "temporary": 0,
        "context": 0,
        "communication": 0,
    }
    assert MemoryPeak.from_dict(json.loads(json.dumps(peak.to_dict()))) == peak


def test_accumulation_adds_to_gradients_that_are_there_and_holds_every_batch() -> None:
    item, two, five = (model().peak(configuration(4, count)) for count in (1, 2, 5))
    assert two.allocated_bytes == item.allocated_bytes + 100 * MIB + 4 * MIB
    lasting = model(keeps_gradients=True).peak(configuration(4, 1))
    assert lasting.allocated_bytes == item.allocated_bytes + 100 * MIB, "gradients that are never freed"
    assert five.allocated_bytes == two.allocated_bytes + 3 * 4 * MIB


def test_an_optimizer_that_needs_more_than_the_activations_is_the_peak() -> None:
    peak = model(answered=answer(temporary=900)).peak(configuration(4, 1))
    assert peak.where == OPTIMIZER_STEP
    assert peak.split.temporary == 900 * MIB
    assert peak.split.optimizer_states == 200 * MIB
    assert peak.allocated_bytes == (100 + 100 + 200 + 900 + 4) * MIB


@pytest.mark.parametrize(("capability", "each"), [((7, 0), 8320 << 10), ((8, 0), 8320 << 10), ((9, 0), 32 << 20)])
def test_forward_and_backward_have_a_workspace_of_cublas_each(capability: tuple[int, int], each: int) -> None:
    card = replace(GPU, compute_capability=capability)
    assert model(card).peak(configuration(4, 1)).split.temporary == 2 * each
    allocator = model(card).simulate(step_key(configuration(), card), UpdateKey("adamw_torch"), 4, False)
    without = model(CPU).peak(configuration(4, 1)).allocated_bytes
    assert allocator.peak_allocated == pytest.approx(without + 2 * each, abs=4 * MIB)


def test_on_a_gpu_there_are_context_workspace_and_whole_segments() -> None:
    peak = model(GPU).peak(configuration(4, 1))
    assert peak.split.context == TYPICAL_CONTEXT
    assert peak.split.temporary == 2 * CUBLAS_WORKSPACE
    assert peak.reserved_bytes >= peak.allocated_bytes
    assert peak.reserved_bytes % (2 * MIB) == 0
    assert peak.device_bytes == peak.reserved_bytes + TYPICAL_CONTEXT
    assert model(GPU, context_bytes=7).peak(configuration()).split.context == 7


def test_the_simulated_allocator_allocates_what_the_lines_say() -> None:
    memory = model(GPU)
    for micro in (1, 2, 4, 8):
        allocator = memory.simulate(step_key(configuration(), GPU), UpdateKey("adamw_torch"), micro, True)
        assert abs(allocator.peak_allocated - memory.peak(configuration(micro, 2)).allocated_bytes) <= 4 * MIB


def test_only_settings_that_change_memory_need_traces_of_their_own() -> None:
    configurations = [
        configuration(micro, 1, precision=precision, optimizer=optimizer, workers=workers)
        for micro in (1, 2, 8)
        for precision in ("fp32", "tf32", "fp16", "bf16")
        for optimizer in ("adamw_torch", "adafactor")
        for workers in (0, 2)
    ]
    wanted = wanted_traces(configurations, GPU, {})
    assert len(wanted.steps) == 2
    assert list(wanted.updates) == [UpdateKey("adamw_torch"), UpdateKey("adafactor")]
    values = SETTINGS["checkpointing"].values
    assert len(wanted_traces([configuration(checkpointing=value) for value in values], GPU, {}).steps) == len(values)


def test_the_optimizer_of_one_s_own_arguments_counts_where_the_space_has_none() -> None:
    plain = Configuration(4, 1, settings=(("precision", "fp32"),))
    assert list(wanted_traces([plain], CPU, {"optim": "sgd"}).updates) == [UpdateKey("sgd")]
    assert list(wanted_traces([plain], CPU, {}).updates) == [UpdateKey("adamw_torch_fused")]


def test_what_could_not_be_traced_says_why_for_its_configurations_alone() -> None:
    configurations = [configuration(), configuration(precision="bf16")]
    answered = answer(steps=[*answer()["steps"], {"error": "no such attention"}])  # type: ignore[misc]
    memory = memory_model(answered, wanted_traces(configurations, CPU, {}), CPU, {})
    assert memory.peak(configurations[0]).allocated_bytes
    with pytest.raises(NotTraced, match="no such attention"):
        memory.peak(configurations[1])


def test_steps_that_do_not_grow_in_a_straight_line_are_refused() -> None:
    answered = answer()
    answered["steps"][0]["tapes"][3]["segments"][0][-1] = [0, 1]  # type: ignore[index]
    with pytest.raises(NotTraced, match="straight line"):
        model(answered=answered).peak(configuration())


def test_weights_in_16_bits_have_traces_and_bytes_of_their_own() -> None:
    configurations = [configuration(), configuration(precision="bf16_weights")]
    wanted = wanted_traces(configurations, CPU, {})
    assert list(wanted.updates) == [UpdateKey("adamw_torch"), UpdateKey("adamw_torch", "bfloat16")]
    assert [item["dtype"] for item in wanted.request()["updates"]] == ["float32", "bfloat16"]
    steps = [*answer()["steps"], {**answer()["steps"][0], "weights": [50 * MIB]}]  # type: ignore[misc, index]
    memory = memory_model(answer(steps=steps, updates=answer()["updates"] * 2), wanted, CPU, {})  # type: ignore[operator]
    assert [memory.peak(item).split.weights for item in configurations] == [100 * MIB, 50 * MIB]
