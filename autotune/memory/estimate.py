"""Peak memory of any configuration from traces of the model's step, without accelerator, weights or execution.

traces of few layers ──repeated──> traces ──lines─> peak of what is allocated ─┐
                        of a rank ────┘ └──allocator model──> what it wastes ─────┴─> MemoryPeak
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core import Configuration, Environment
from autotune.core.note import Note, NoteKind
from autotune.memory.allocator import CachingAllocator, replay, rounded
from autotune.memory.envelope import Line, in_blocks, peak_lines
from autotune.memory.keys import StepKey, UpdateKey, Wanted, step_key, update_key
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.memory.sharding import DDP, NCCL_BYTES, RankTrace, Sharding, Units, sharding_of, update_of_rank
from autotune.memory.trace import (
    COMMUNICATION,
    FIRST,
    FURTHER,
    GRADIENTS,
    KINDS,
    LASTING,
    STATES,
    TEMPORARY,
    MemoryTrace,
    NotPeriodic,
    between,
    repeated,
)

CUBLAS_WORKSPACE, CUBLAS_WORKSPACE_HOPPER = (2 * 4096 + 8 * 16) << 10, 32 << 20
"""Bytes of a cuBLAS handle's workspace in torch, up to compute capability 8 and from 9 on
(`aten/src/ATen/cuda/CublasHandlePool.cpp`)."""

CUBLAS_HANDLES = 2
"""Number of cuBLAS handles: each thread has one (ibid.); autograd runs the backward pass in another thread than the forward."""

TYPICAL_CONTEXT = 512 << 20
"""Bytes of a CUDA context with a training's kernels, if none was measured: an assumption, and shown as one."""

FORWARD_BACKWARD, OPTIMIZER_STEP = "forward and backward", "optimizer step"


class NotTraced(ValueError):
    """This configuration's step or optimizer could not be traced; the message says why."""


@dataclass(frozen=True)
class TracedStep:
    """Forward and backward of one combination of settings."""

    traces: Mapping[int, MemoryTrace]  # by micro-batch size, 0 for every other size
    lines: Mapping[int, Mapping[str, tuple[Line, ...]]]  # by the same sizes and by phase
    weights: tuple[int, ...] | None = None  # bytes of each parameter and buffer, if not the model's

    def at(self, micro_batch_size: int) -> int:
        """The key of the trace for this size."""
        return micro_batch_size if micro_batch_size in self.lines else 0


@dataclass
class MemoryModel:
    """Peaks of configurations, in microseconds each once the allocator has been simulated for similar ones."""

    environment: Environment
    base: Mapping[str, Any]
    weights: tuple[int, ...]  # bytes of each parameter and buffer
    batch: tuple[int, ...]  # bytes of each tensor of one sample
    steps: Mapping[StepKey, TracedStep]
    updates: Mapping[UpdateKey, MemoryTrace]
    units: Units
    failures: Mapping[Any, str] = field(default_factory=dict)  # key that could not be traced -> reason
    notes: tuple[Note, ...] = ()
    context_bytes: int = 0
    keeps_gradients: bool = False  # they are never freed, as when `zero_grad` writes zeros
    arithmetic: Mapping[str, float] | None = None  # `flops` of a sample, `kernels` of a micro-step
    sample_flops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # adapter -> fields of `SampleFlops`
    _wasted: dict[Any, int] = field(default_factory=dict)
    _ranks_steps: dict[Any, TracedStep] = field(default_factory=dict)
    _of_updates: dict[Any, tuple[tuple[Line, ...], int]] = field(default_factory=dict)

    def peak(self, configuration: Configuration) -> MemoryPeak:
        """The configuration's peak, of one rank; raises NotTraced if its step or its optimizer could not be traced."""
        key = step_key(configuration, self.environment)
        optimizer = update_key(configuration, self.environment, self.base)
        if reason := self.failures.get(key) or self.failures.get(optimizer):
            raise NotTraced(reason)
        micro_batch_size, accumulation = configuration.micro_batch_size, configuration.gradient_accumulation_steps
        sharding = sharding_of(configuration, self.environment, self.base)
        step = self._step_of(key, sharding, accumulation > 1)
        lines = step.lines[step.at(micro_batch_size)]
        of_update, states = self._of_update(optimizer, sharding)
        # All, in every moment of a further micro-step.
        gradients = self.steps[key].lines[step.at(micro_batch_size)][FURTHER][0].fixed[KINDS.index(GRADIENTS)]
        always: dict[str, float] = {}
        in_update, context = {GRADIENTS: gradients}, self.context_bytes
        if sharding is not None:
            always = {
                STATES: sharding.master_bytes(gradients),
                COMMUNICATION: sharding.bucket_bytes(gradients, self.units.width),
            }
            in_update = {GRADIENTS: sharding.gradient_bytes(gradients), TEMPORARY: sharding.update_bytes(gradients)}
            context += 0 if self.environment.is_cpu else NCCL_BYTES
        phases = [FURTHER] if self.keeps_gradients else [FIRST, FURTHER] if accumulation > 1 else [FIRST]
        moments = [
            (_plus(line.bytes_at(micro_batch_size), {STATES: states}), FORWARD_BACKWARD)
            for phase in phases
            for line in lines[phase]
        ]
        moments += [(_plus(line.fixed, in_update), OPTIMIZER_STEP) for line in of_update]
        parts, where = max(moments, key=lambda moment: sum(moment[0].values()))
        parts["weights"] += sum(map(self._block, self._weights_of(key, optimizer, sharding)))
        parts["activations"] += accumulation * sum(self._block(micro_batch_size * size) for size in self.batch)
        parts["temporary"] += sum(self.workspaces) + self.environment.optimizer_bytes.get(optimizer.optimizer, 0)
        parts = _plus(parts.values(), always)
        split = MemorySplit(**{kind: int(size) for kind, size in parts.items()}, context=context)
        wasted = self._wasted_bytes(key, optimizer, micro_batch_size, accumulation > 1, sharding)
        return MemoryPeak(split, split.total - split.context + wasted, where)

    @property
    def workspaces(self) -> list[int]:
        """Bytes that cuBLAS keeps, for each of its handles; none on a CPU."""
        if self.environment.is_cpu:
            return []
        major = (self.environment.compute_capability or (8, 0))[0]
        return [CUBLAS_WORKSPACE_HOPPER if major >= 9 else CUBLAS_WORKSPACE] * CUBLAS_HANDLES

    def simulate(
        self,
        key: StepKey,
        optimizer: UpdateKey,
        micro_batch_size: int,
        accumulates: bool,
        sharding: Sharding | None = None,
    ) -> CachingAllocator:
        """The allocator after two optimizer steps of one or two micro-steps."""
        step = self._step_of(key, sharding, accumulates)
        return replay(
            step.traces[step.at(micro_batch_size)],
            self._update_of(optimizer, sharding),
            micro_batch_size,
            lasting=[*self._weights_of(key, optimizer, sharding), *self.workspaces],
            batch=[size * micro_batch_size for size in self.batch],
            micro_steps=1 + accumulates,
            keeps_gradients=self.keeps_gradients,
        )

    def _step_of(self, key: StepKey, sharding: Sharding | None, accumulates: bool) -> TracedStep:
        """The step of a rank."""
        step = self.steps[key]
        if sharding is None or sharding.way == DDP:
            return step
        place = (key, sharding, accumulates)
        if place not in self._ranks_steps:
            traces = {
                size: RankTrace(trace, sharding, self.units, accumulates).changed()
                for size, trace in step.traces.items()
            }
            lines = {size: _lines(trace, self.environment.is_cpu) for size, trace in traces.items()}
            self._ranks_steps[place] = TracedStep(traces, lines, step.weights)
        return self._ranks_steps[place]

    def _update_of(self, optimizer: UpdateKey, sharding: Sharding | None) -> MemoryTrace:
        """The optimizer's step of a rank."""
        trace = self.updates[optimizer]
        return trace if sharding is None else update_of_rank(trace, sharding, self.units)

    def _weights_of(self, key: StepKey, optimizer: UpdateKey, sharding: Sharding | None) -> list[float]:
        """Bytes of each parameter and buffer that a rank keeps. FSDP's are those that the optimizer steps."""
        weights = self.steps[key].weights
        if weights is None or (
            sharding and sharding.is_fsdp and optimizer.dtype == "float32" and not optimizer.adapter
        ):
            weights = self.weights
        share = 1.0 if sharding is None else sharding.weight_share
        return [share * size for size in weights]

    def _block(self, size: float) -> int:
        return int(size) if self.environment.is_cpu else rounded(size)

    def _of_update(self, optimizer: UpdateKey, sharding: Sharding | None) -> tuple[tuple[Line, ...], int]:
        """(the highest moments of the optimizer's step, bytes of its states)."""
        place = (optimizer, sharding)
        if place not in self._of_updates:
            trace = self._update_of(optimizer, sharding)
            trace = trace if self.environment.is_cpu else in_blocks(trace)
            lines = tuple(line for of_phase in peak_lines(trace).values() for line in of_phase)
            states = sum(int(tensor.fixed) for tensor in trace.tensors if tensor.kind in LASTING)
            self._of_updates[place] = lines, states
        return self._of_updates[place]

    def _wasted_bytes(
        self, key: StepKey, optimizer: UpdateKey, size: int, accumulates: bool, sharding: Sharding | None
    ) -> int:
        """Reserved less allocated bytes: simulated at powers of two, linear between them."""
        if self.environment.is_cpu:
            return 0
        low = 1 << (size.bit_length() - 1)
        share = (size - low) / low
        first = self._simulated(key, optimizer, low, accumulates, sharding)
        second = self._simulated(key, optimizer, 2 * low, accumulates, sharding) if share else first
        return int(first + share * (second - first))

    def _simulated(
        self, key: StepKey, optimizer: UpdateKey, size: int, accumulates: bool, sharding: Sharding | None
    ) -> int:
        place = (key, optimizer, size, accumulates, sharding)
        if place not in self._wasted:
            allocator = self.simulate(key, optimizer, size, accumulates, sharding)
            self._wasted[place] = allocator.peak_reserved - allocator.peak_allocated
        return self._wasted[place]


def _plus(moment: Iterable[float], sizes: Mapping[str, float]) -> dict[str, float]:
    """Kind -> a moment's bytes, with more of some kinds."""
    return {kind: size + sizes.get(kind, 0) for kind, size in zip(KINDS, moment, strict=True)}


def memory_model(
    reply: Mapping[str, Any],
    wanted: Wanted,
    environment: Environment,
    base: Mapping[str, Any],
    context_bytes: int | None = None,
    keeps_gradients: bool = False,
) -> MemoryModel:
    """The model from the reply to a `trace` order. context_bytes: by default the environment's, else a typical one."""
    failures: dict[Any, str] = {}
    notes = [*map(Note.from_dict, reply["notes"])]
    counts, on_cpu = reply["counts"], environment.is_cpu
    steps: dict[StepKey, TracedStep] = {}
    for key, data in zip(wanted.steps, reply["steps"], strict=True):
        try:
            steps[key] = _step(data, counts, on_cpu)
        except NotTraced as error:
            failures[key] = str(error)
    updates: dict[UpdateKey, MemoryTrace] = {}
    for name, data in zip(wanted.updates, reply["updates"], strict=True):
        if "error" in data:
            failures[name] = data["error"]
        else:
            updates[name] = MemoryTrace.from_dict(data["tape"])
    if context_bytes is None:
        context_bytes = environment.context_bytes or (0 if on_cpu else TYPICAL_CONTEXT)
        if not on_cpu and not environment.context_bytes:
            notes.append(Note(NoteKind.CONTEXT, {"context_bytes": TYPICAL_CONTEXT}))
    return MemoryModel(
        environment,
        base,
        tuple(reply["weights"]),
        tuple(reply["batch"]),
        steps,
        updates,
        Units(**reply["units"]),
        failures,
        tuple(notes),
        context_bytes,
        keeps_gradients,
        reply.get("arithmetic"),
        reply.get("sample_flops", {}),
    )


def _step(data: Mapping[str, Any], counts: list[int], on_cpu: bool) -> TracedStep:
    if "error" in data:
        raise NotTraced(data["error"])
    weights = tuple(data["weights"]) if "weights" in data else None
    by_size = {int(size): MemoryTrace.from_dict(trace) for size, trace in data["tapes"].items()}
    small, large = sorted(size for size in by_size if size > 1)
    general = between(by_size[small], small, by_size[large], large)
    if general is None:
        raise NotTraced("what it makes does not grow in a straight line with the micro-batch")
    traces = {size: trace for size, trace in by_size.items() if size == 1} | {0: general}
    if not data["whole"]:
        try:
            traces = {size: repeated(trace, counts) for size, trace in traces.items()}
        except NotPeriodic as error:
            raise NotTraced(str(error)) from error
    return TracedStep(traces, {size: _lines(trace, on_cpu) for size, trace in traces.items()}, weights)


def _lines(trace: MemoryTrace, on_cpu: bool) -> dict[str, tuple[Line, ...]]:
    return peak_lines(trace if on_cpu else in_blocks(trace))
