"""Memory of one of several ranks: its part of weights, gradients and states, and what it holds to exchange them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.core.configuration import RANKS, Configuration
from autotune.core.environment import Environment
from autotune.memory.trace import COMMUNICATION, GRADIENTS, KINDS, TEMPORARY, WEIGHTS, MemoryTrace, Segment, Tensor
from autotune.space.settings import SETTINGS, lora, precision, zero
from autotune.space.setup import training_setup

DDP, GRADIENTS_ONLY, FULL = "ddp", "shard_grad_op", "full_shard"

HALF, WHOLE = 2, 4
"""Bytes of a number of 16 and of 32 bits."""

NCCL_BYTES = 24 * 2 * ((4 << 20) + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16)
"""Bytes that NCCL takes of the device, outside torch's allocator: for each of 24 channels and two connections (in a ring or
a tree) the buffers of its protocols, Simple 4 MiB (`NCCL_BUFFSIZE`), LL128 and LL (`src/include/device.h` of NCCL 2.x:
elements a thread x threads x steps x bytes). The channels are an assumption: NCCL chooses them by the links between GPUs."""

LIVE_PARAMETERS, REUSED_WITHIN = 1_000_000_000, 1_000_000_000
"""DeepSpeed's defaults of `stage3_max_live_parameters` and `stage3_max_reuse_distance`: ZeRO-3 keeps a gathered weight if it
is needed again before as many others. At the loss that is half of them: each layer is as far from the end as back again."""

REDUCE_BUCKET = 500_000_000
"""DeepSpeed's default of `reduce_bucket_size`; the Trainer's "auto" is the model's width squared."""

SUB_GROUP = 1_000_000_000
"""DeepSpeed's default of `sub_group_size`: weights of a rank that ZeRO-3 updates at once."""

BUFFERS_OVERLAPPED = 2
"""Buckets of ZeRO-1 and ZeRO-2 with `overlap_comm`: one is filled while the other is reduced."""


@dataclass(frozen=True)
class Sharding:
    """Division of a training among ranks. way: `ddp`, a value of `fsdp`, or a stage of `zero`."""

    ranks: int
    way: str
    compute: int  # bytes of a number in forward and backward
    stored: int  # bytes of a trained number in the weights that the optimizer steps
    traced: int  # bytes of a number of the trace's gradients

    @property
    def is_fsdp(self) -> bool:
        return self.way in (GRADIENTS_ONLY, FULL)

    @property
    def stage(self) -> int | None:
        """The stage of ZeRO, if it is DeepSpeed's."""
        return int(self.way) if self.way in zero.STAGES else None

    @property
    def state_share(self) -> float:
        """The rank's share of the optimizer's states."""
        return 1.0 if self.way in (DDP, "0") else 1 / self.ranks

    @property
    def weight_share(self) -> float:
        """The rank's share of the weights between their uses."""
        return 1 / self.ranks if self.is_fsdp or self.stage == 3 else 1.0

    @property
    def keeps_gradients_whole(self) -> bool:
        return self.way in (DDP, "0", "1")

    def gradient_bytes(self, traced: float) -> float:
        """Bytes of the rank's gradients at the optimizer's step. traced: bytes of all in the trace."""
        if self.keeps_gradients_whole:
            return traced
        return traced / self.traced * (self.stored if self.is_fsdp else self.compute) / self.ranks

    def master_bytes(self, traced: float) -> float:
        """Bytes of the weights in 32 bits that DeepSpeed steps (arXiv 1910.02054, section 3.1)."""
        return 0.0 if self.stage is None else traced / self.traced * WHOLE * self.state_share

    def update_bytes(self, traced: float) -> float:
        """Bytes of the gradients in 32 bits that DeepSpeed makes for the optimizer's step."""
        if self.stage is None:
            return 0.0
        numbers = traced / self.traced * self.state_share
        return WHOLE * (min(numbers, SUB_GROUP) if self.stage == 3 else numbers)

    def bucket_bytes(self, traced: float, width: int) -> float:
        """Bytes of the buckets in which gradients are exchanged.

        DistributedDataParallel copies all gradients to its buckets (`gradient_as_bucket_view` is false by default, and
        accelerate leaves it so). FSDP's are in the trace. width: of the model.
        """
        if self.way == DDP:
            return traced
        if self.stage is None:
            return 0.0
        bucket = self.compute * (width**2 or REDUCE_BUCKET)
        return bucket * (1 if self.stage in (0, 3) else BUFFERS_OVERLAPPED)


def way_of(configuration: Configuration) -> str:
    """The way in which its ranks divide the training; empty for one rank, and for what DeepSpeed offloads."""
    if configuration.data_parallel_size == 1:
        return ""
    values = configuration.values
    stage, fsdp = str(values.get("zero", zero.NONE)), str(values.get("fsdp", "none"))
    if stage != zero.NONE:
        return stage if stage in zero.STAGES else ""
    return DDP if fsdp == "none" else fsdp


def sharding_of(configuration: Configuration, environment: Environment, base: Mapping[str, Any]) -> Sharding | None:
    """The division of a configuration with several ranks; None for one."""
    if not (way := way_of(configuration)):
        return None
    setup = training_setup(configuration, environment, base)
    arguments, dtype = setup.training_arguments, setup.model_arguments["dtype"]
    halves = bool(arguments.get("bf16") or arguments.get("fp16") or dtype != "float32")
    traced_in_halves = halves and not setup.adapter and (way != DDP or dtype != "float32")
    return Sharding(
        configuration.data_parallel_size,
        way,
        HALF if halves else WHOLE,
        WHOLE if dtype == "float32" else HALF,
        HALF if traced_in_halves else WHOLE,
    )


def on_one_rank(configuration: Configuration) -> Configuration:
    """The configuration in a single process, with the tensors that a rank of it makes.

    FSDP and DeepSpeed compute with weights of 16 bits if it is in 16 bits at all, where a single process has autocast
    (accelerate's `fsdp2_prepare_model`; DeepSpeed's engine casts the model).
    """
    settings = {
        name: value
        for name, value in configuration.settings
        if name != RANKS and (SETTINGS[name].active_if or ("",))[0] != RANKS
    }
    way = way_of(configuration)
    if way in zero.STAGES:
        settings["zero"] = zero.NONE
    if way not in ("", DDP) and settings.get("precision") in ("fp16", "bf16"):
        if settings.get("lora", lora.NONE) == lora.NONE:
            settings["precision"] = precision.WEIGHTS
        elif way in zero.STAGES:
            settings["precision"] = precision.FROZEN
    return Configuration(
        configuration.micro_batch_size, configuration.gradient_accumulation_steps, settings=tuple(settings.items())
    )


@dataclass(frozen=True)
class Units:
    """Numbers in the weights that are gathered together: in the largest layer, and in the largest unit outside of them."""

    layer: int
    outside: int
    all: int  # in all weights
    width: int  # of the model, 0 if it has none


class RankTrace:
    """The trace of a rank of FSDP or DeepSpeed: gradients become shards, and weights are gathered for their layer.

    FSDP2 gathers a layer while it computes the one before (two layers' weights at once), copies a layer's gradients to be
    reduced, and frees the copy when the next layer's are reduced (`torch/distributed/fsdp/_fully_shard`). accelerate makes
    units of the layers, the embedding, and the final norm with the output's weights (`fsdp2_prepare_model`).
    """

    def __init__(self, trace: MemoryTrace, sharding: Sharding, units: Units, accumulates: bool) -> None:
        self._trace, self._sharding, self._units = trace, sharding, units
        # Without `no_sync` gradients stay whole until the last micro-step; with DeepSpeed the Trainer reduces them in each.
        self._whole = sharding.keeps_gradients_whole or (sharding.is_fsdp and accumulates)
        self._by_layer = any(segment.group is not None for segment in trace.segments)
        self._tensors = list(trace.tensors)
        self._held: dict[tuple[int | None, int], int] = {}  # layer -> weights that stay gathered
        self._reduced: int | None = None  # gradients that are being reduced

    def changed(self) -> MemoryTrace:
        """The rank's trace."""
        last = {segment.phase: number for number, segment in enumerate(self._trace.segments)}
        phase, segments = "", []
        for number, segment in enumerate(self._trace.segments):
            events = list(self._events(segment))
            if segment.phase != phase and (held := self._held_in_a_pass()):
                self._held[None, -1] = self._new(held, COMMUNICATION)
                events.insert(0, self._held[None, -1])
            phase = segment.phase
            if number == last[phase]:
                events += [~tensor for tensor in (*self._held.values(), self._reduced) if tensor is not None]
                self._held, self._reduced = {}, None
            segments.append(Segment(phase, segment.group, segment.layer, segment.backward, tuple(events)))
        return MemoryTrace(tuple(self._tensors), tuple(segments))

    def _held_in_a_pass(self) -> float:
        """Bytes that stay for a whole pass: what ZeRO-3 will use again, and of a model without like layers all buffers."""
        sharding, units = self._sharding, self._units
        numbers = 0.0
        if sharding.stage == 3:
            numbers = min(units.all, min(LIVE_PARAMETERS, REUSED_WITHIN) / 2 + units.layer)
        elif sharding.is_fsdp and not self._by_layer:
            gathered = 2 * units.layer + units.outside if sharding.way == FULL else units.all
            numbers = gathered + 2 * units.layer
        return numbers * sharding.compute

    def _new(self, size: float, kind: str) -> int:
        self._tensors.append(Tensor(size, 0, kind))
        return len(self._tensors) - 1

    def _events(self, segment: Segment) -> Iterator[int]:
        layer = (segment.group, segment.layer)
        gathered = self._gathered(segment)
        if gathered is not None:
            yield gathered
        gradients = []
        for event in segment.events:
            tensor = self._trace.tensors[event if event >= 0 else ~event]
            if tensor.kind == WEIGHTS:
                continue  # copies in 16 bits, which gathered weights are
            if tensor.kind == GRADIENTS and event >= 0:
                if not (self._whole or self._by_layer):
                    yield self._new(self._sharding.gradient_bytes(tensor.fixed), GRADIENTS)
                    continue
                gradients.append(event)
                if self._sharding.is_fsdp:
                    size = tensor.fixed / self._sharding.traced * self._sharding.compute
                    self._tensors[event] = Tensor(size, 0, GRADIENTS)
            yield event
        if gradients and not self._whole:
            yield from self._reduce(gradients)
        if gathered is not None and self._sharding.way == GRADIENTS_ONLY and segment.group is not None:
            self._held[layer] = gathered
        elif gathered is not None:
            yield ~gathered
        if segment.backward and layer in self._held:
            yield ~self._held.pop(layer)

    def _gathered(self, segment: Segment) -> int | None:
        """Weights that are gathered for this segment."""
        sharding, units = self._sharding, self._units
        if not (sharding.is_fsdp and self._by_layer):
            return None
        if segment.group is None:
            return self._new(units.outside * sharding.compute, COMMUNICATION)
        if sharding.way == GRADIENTS_ONLY:
            return None if segment.backward else self._new(units.layer * sharding.compute, COMMUNICATION)
        return self._new(2 * units.layer * sharding.compute, COMMUNICATION)

    def _reduce(self, gradients: list[int]) -> Iterator[int]:
        """Replace gradients by the rank's part of them."""
        if self._sharding.is_fsdp:
            if self._reduced is not None:
                yield ~self._reduced
            self._reduced = self._new(sum(self._tensors[tensor].fixed for tensor in gradients), COMMUNICATION)
            yield self._reduced
        for tensor in gradients:
            yield ~tensor
            yield self._new(self._sharding.gradient_bytes(self._trace.tensors[tensor].fixed), GRADIENTS)


def update_of_rank(trace: MemoryTrace, sharding: Sharding, units: Units) -> MemoryTrace:
    """The optimizer's step of a rank: its share of each tensor. ZeRO-3 steps a group of weights after the other."""
    share = sharding.state_share
    brief = min(share, SUB_GROUP / max(1, units.all)) if sharding.stage == 3 else share
    shares = {kind: brief if kind == TEMPORARY else share for kind in KINDS}
    tensors = (
        Tensor(shares[tensor.kind] * tensor.fixed, shares[tensor.kind] * tensor.per_sample, tensor.kind)
        for tensor in trace.tensors
    )
    return MemoryTrace(tuple(tensors), trace.segments)
