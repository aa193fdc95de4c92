"""Peaks of a rank from a trace by hand: shards, gathered weights, buckets, and what DeepSpeed keeps besides."""

import pytest

from autotune.core import Configuration, Environment
from autotune.memory.estimate import FORWARD_BACKWARD, OPTIMIZER_STEP, TYPICAL_CONTEXT, MemoryModel, memory_model
from autotune.memory.keys import step_key, wanted_traces
from autotune.memory.peak import MemoryPeak
from autotune.memory.sharding import NCCL_BYTES, REDUCE_BUCKET, on_one_rank
from autotune.memory.trace import FIRST, FURTHER, UPDATE, UPDATE_FIRST

MIB = 2**20
GPU = Environment(
    "cuda:0", "a GPU", 2**40, 2**40, compute_capability=(8, 0), training_argument_fields=("activation_checkpointing",)
)
LAYERS, LAYER, OUTSIDE = 4, 100, 40
"""Layers of a model, and MiB of the float32 weights of one, and of the embedding or the output."""

ALL = LAYERS * LAYER + 2 * OUTSIDE


def numbers(mib: int) -> int:
    """Of float32 numbers in so many MiB."""
    return mib * MIB // 4


def step(size: int, width: int) -> dict[str, object]:
    """An activation of 1 MiB a sample and layer, then a gradient of each layer; width: bytes of a number."""
    sizes: list[int] = []
    kinds: list[str] = []
    segments: list[list[object]] = []

    def new(mib: int, kind: str) -> int:
        sizes.append(mib * MIB)
        kinds.append(kind)
        return len(sizes) - 1

    for phase in (FIRST, FURTHER):
        segments.append([phase, None, 0, False, [new(size, "activations")]])
        kept = [new(size, "activations") for _ in range(LAYERS)]
        segments += [[phase, 0, place, False, [tensor]] for place, tensor in enumerate(kept)]
        weights = [
            ("gradients" if phase == FIRST else "temporary", mib) for mib in (OUTSIDE, *[LAYER] * LAYERS, OUTSIDE)
        ]
        made = [new(mib * width // 4, kind) for kind, mib in weights]
        frees = [[~tensor] if phase == FURTHER else [] for tensor in made]
        segments.append([phase, None, 0, False, [made[0], *frees[0]]])
        segments += [
            [phase, 0, place, True, [made[LAYERS - place], *frees[LAYERS - place], ~kept[place]]]
            for place in reversed(range(LAYERS))
        ]
        segments.append([phase, None, 0, False, [made[-1], *frees[-1]]])
    return {"sizes": sizes, "kinds": kinds, "segments": segments}


def peak(accumulation: int = 1, ranks: int = 4, precision: str = "fp32", **settings: str) -> MemoryPeak:
    chosen = {"checkpointing": "none", "precision": precision, "optimizer": "adamw_torch", **settings}
    configuration = Configuration(1, accumulation, ranks, (*chosen.items(), ("data_parallel_size", ranks)))
    return model(configuration).peak(configuration)


def model(configuration: Configuration) -> MemoryModel:
    width = 4 if on_one_rank(configuration).values["precision"] == "fp32" else 2
    update = {
        "sizes": [2 * ALL * MIB, ALL * MIB],
        "kinds": ["optimizer_states", "temporary"],
        "segments": [[UPDATE_FIRST, None, 0, False, [0, 1, ~1]], [UPDATE, None, 0, False, []]],
    }
    units = {"layer": numbers(LAYER), "outside": numbers(OUTSIDE), "all": numbers(ALL), "width": 1024}
    own = {} if width == 4 else {"weights": [ALL * MIB // 2]}
    answer = {
        "weights": [ALL * MIB],
        "batch": [0],
        "counts": [LAYERS],
        "notes": [],
        "units": units,
        "steps": [{"tapes": {size: step(size, width) for size in (1, 2, 3)}, "whole": True, **own}],
        "updates": [{"tape": update}],
    }
    return memory_model(answer, wanted_traces([configuration], GPU, {}), GPU, {})


def mib(size: float) -> int:
    return round(size / MIB)


def test_ranks_that_copy_all_have_buckets_as_large_as_the_gradients_and_nccl() -> None:
    alone, together = peak(ranks=1), peak()
    assert mib(together.split.communication) == ALL
    assert together.split.context == TYPICAL_CONTEXT + NCCL_BYTES
    assert together.allocated_bytes - alone.allocated_bytes == pytest.approx(ALL * MIB, abs=MIB)
    assert alone.split.communication == 0


def test_a_full_shard_keeps_a_share_and_gathers_two_layers() -> None:
    split = peak(fsdp="full_shard").split
    assert peak(fsdp="full_shard").where == FORWARD_BACKWARD
    assert mib(split.weights) == ALL // 4
    assert mib(split.optimizer_states) == 2 * ALL // 4
    # The last layer's backward: two layers are gathered, its gradients copied, and those before are shards.
    assert mib(split.communication) == 2 * LAYER + LAYER
    assert mib(split.gradients) == (OUTSIDE + (LAYERS - 1) * LAYER) // 4 + LAYER


def test_what_else_fsdp_gathers_and_keeps() -> None:
    full, gradients = (peak(fsdp=value) for value in ("full_shard", "shard_grad_op"))
    half, twice = peak(fsdp="full_shard", precision="bf16").split, peak(2, fsdp="full_shard")
    assert half.weights == full.split.weights, "float32 shards are kept"
    assert mib(half.communication) == mib(full.split.communication) // 2
    assert mib(twice.split.gradients) == ALL, "gradients stay whole while they accumulate"
    assert twice.allocated_bytes > full.allocated_bytes
    assert gradients.allocated_bytes > full.allocated_bytes
    assert mib(gradients.split.communication) >= (LAYERS - 1) * LAYER


@pytest.mark.parametrize(("stage", "weights"), [("1", ALL // 2), ("2", ALL // 2), ("3", ALL // 8)])
def test_deepspeed_steps_a_share_in_float32(stage: str, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.memory.sharding.REUSED_WITHIN", 0)
    step = peak(zero=stage, precision="bf16")
    split = step.split
    assert step.where == OPTIMIZER_STEP
    assert mib(split.weights) == weights
    assert mib(split.optimizer_states) == (2 + 1) * ALL // 4  # AdamW's two, and the weights
    assert mib(split.gradients) == (ALL // 2 if stage == "1" else ALL // 8)
    assert mib(split.temporary) == pytest.approx(2 * ALL // 4, abs=17)  # gradients in float32, the step's own, cuBLAS
    assert mib(split.communication) == (2 if stage == "3" else 4)  # "auto": the width squared, twice if it overlaps


def test_a_model_without_a_width_has_deepspeed_s_own_bucket() -> None:
    configuration = Configuration(1, 1, 4, (("precision", "fp32"), ("zero", "3"), ("data_parallel_size", 4)))
    memory = model(configuration)
    memory.units = type(memory.units)(**{**vars(memory.units), "width": 0})
    assert memory.peak(configuration).split.communication >= 4 * REDUCE_BUCKET


def test_a_rank_s_step_is_that_of_16_bit_weights_if_it_computes_in_16_bits() -> None:
    def key(**settings: str) -> object:
        configuration = Configuration(1, 1, 2, (*settings.items(), ("data_parallel_size", 2)))
        return step_key(configuration, GPU)

    pure = key(precision="bf16_weights", fsdp="none")
    assert key(precision="bf16", fsdp="none") != pure
    assert key(precision="bf16", fsdp="full_shard") == key(precision="fp16", zero="2") == pure
    assert key(precision="bf16", zero="3", lora="8") == key(precision="bf16_frozen", fsdp="full_shard", lora="8")
