"""Peak memory of any configuration, from traces of the model's step: no accelerator, no weights, nothing run.

traces of few layers ──repeated──> tapes ──lines──> peak of what is allocated ─┐
                                     └──allocator model──> what it wastes ─────┴─> MemoryPeak
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.configuration import Configuration
from autotune.core.environment import Environment
from autotune.memory.allocator import CachingAllocator, rounded
from autotune.memory.allocator_replay import replay
from autotune.memory.envelope import Line, in_blocks, peak_lines, straight
from autotune.memory.keys import StepKey, UpdateKey, Wanted, step_key, update_key
from autotune.memory.peak import MemoryPeak, MemorySplit
from autotune.memory.trace import FIRST, FURTHER, GRADIENTS, KINDS, LASTING, MemoryTrace, NotPeriodic, between, repeated

CUBLAS_WORKSPACE, CUBLAS_WORKSPACE_HOPPER = (2 * 4096 + 8 * 16) << 10, 32 << 20
"""What torch keeps for a handle of cuBLAS from its first product on, up to compute capability 8 and from 9 on
(`aten/src/ATen/cuda/CublasHandlePool.cpp`)."""

CUBLAS_HANDLES = 2
"""A thread has a handle of its own (ibid.), and autograd runs the backward pass in another thread than the forward."""

TYPICAL_CONTEXT = 512 << 20
"""Bytes of a CUDA context with the kernels a training loads, where none was measured: an assumption, and shown as one."""

FORWARD_BACKWARD, OPTIMIZER_STEP = "forward and backward", "optimizer step"


class NotTraced(ValueError):
    """This configuration's step or optimizer could not be traced; the text says why."""


@dataclass(frozen=True)
class Step:
    """Forward and backward of one combination of settings.

    tapes: micro-batch size -> its tape, 0 for that of every other size; empty where only lines are known.
    lines: the same -> phase -> lines. weights: as the model's (`MemoryModel.weights`), where these are others.
    """

    tapes: Mapping[int, MemoryTrace]
    lines: Mapping[int, Mapping[str, tuple[Line, ...]]]
    weights: tuple[int, ...] | None = None

    def at(self, micro_batch_size: int) -> int:
        """Which tape speaks for this size."""
        return micro_batch_size if micro_batch_size in self.lines else 0


@dataclass
class MemoryModel:
    """Answers `peak(configuration)` in microseconds, once the allocator has been simulated for its like.

    weights, batch: bytes of each parameter and buffer, and of each tensor of one sample. keeps_gradients: they are never
    freed, as where `zero_grad` writes zeros. arithmetic: `flops` of one sample's forward and backward and `kernels` of a
    micro-step, None where they could not be counted; sample_flops: adapter -> fields of `SampleFlops`. failures: what could
    not be traced, and why.
    """

    environment: Environment
    base: Mapping[str, Any]
    weights: tuple[int, ...]
    batch: tuple[int, ...]
    steps: Mapping[StepKey, Step]
    updates: Mapping[UpdateKey, MemoryTrace]
    failures: Mapping[Any, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    context_bytes: int = 0
    keeps_gradients: bool = False
    arithmetic: Mapping[str, float] | None = None
    sample_flops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _wasted: dict[Any, int] = field(default_factory=dict)
    _of_updates: dict[UpdateKey, tuple[tuple[Line, ...], int]] = field(default_factory=dict)

    def peak(self, configuration: Configuration) -> MemoryPeak:
        """The configuration's peak; raises NotTraced where its step or its optimizer could not be traced."""
        key = step_key(configuration, self.environment)
        optimizer = update_key(configuration, self.environment, self.base)
        for one in (key, optimizer):
            if one in self.failures:
                raise NotTraced(self.failures[one])
        return self.peak_of(key, optimizer, configuration.micro_batch_size, configuration.gradient_accumulation_steps)

    def peak_of(self, key: StepKey, optimizer: UpdateKey, micro_batch_size: int, accumulation: int) -> MemoryPeak:
        """The peak of a traced step and optimizer at a micro-batch size and accumulation."""
        step = self.steps[key]
        lines = step.lines[step.at(micro_batch_size)]
        of_update, states = self._of_update(optimizer)
        gradients = lines[FURTHER][0].fixed[
            KINDS.index(GRADIENTS)
        ]  # all of them, in every moment of a further micro-step
        with_states, with_gradients = _Parts(optimizer_states=states), _Parts(gradients=gradients)
        phases = [FURTHER] if self.keeps_gradients else [FIRST, FURTHER] if accumulation > 1 else [FIRST]
        moments = [
            (with_states.plus(line.bytes_at(micro_batch_size)), FORWARD_BACKWARD)
            for phase in phases
            for line in lines[phase]
        ]
        moments += [(with_gradients.plus(line.fixed), OPTIMIZER_STEP) for line in of_update]
        split, where = max(moments, key=lambda one: sum(one[0].values()))
        split["weights"] += sum(map(self._block, self._weights_of(step)))
        split["activations"] += accumulation * sum(self._block(micro_batch_size * one) for one in self.batch)
        split["temporary"] += sum(self.workspaces) + self.environment.optimizer_bytes.get(optimizer.optimizer, 0)
        found = MemorySplit(**{name: int(size) for name, size in split.items()}, context=self.context_bytes)
        wasted = self._wasted_bytes(key, optimizer, micro_batch_size, accumulation > 1)
        return MemoryPeak(found, found.total - found.context + wasted, where)

    @property
    def workspaces(self) -> list[int]:
        """Bytes that cuBLAS keeps, for each of its handles; none on a CPU."""
        if self.environment.is_cpu:
            return []
        major = (self.environment.compute_capability or (8, 0))[0]
        return [CUBLAS_WORKSPACE_HOPPER if major >= 9 else CUBLAS_WORKSPACE] * CUBLAS_HANDLES

    def simulate(
        self, key: StepKey, optimizer: UpdateKey, micro_batch_size: int, accumulates: bool
    ) -> CachingAllocator:
        """The allocator after two optimizer steps of one or two micro-steps; raises KeyError without a tape."""
        step = self.steps[key]
        return replay(
            step.tapes[step.at(micro_batch_size)],
            self.updates[optimizer],
            micro_batch_size,
            lasting=[*self._weights_of(step), *self.workspaces],
            batch=[one * micro_batch_size for one in self.batch],
            micro_steps=1 + accumulates,
            keeps_gradients=self.keeps_gradients,
        )

    def _weights_of(self, step: Step) -> tuple[int, ...]:
        return self.weights if step.weights is None else step.weights

    def _block(self, size: float) -> int:
        return int(size) if self.environment.is_cpu else rounded(size)

    def _of_update(self, optimizer: UpdateKey) -> tuple[tuple[Line, ...], int]:
        """(the highest moments of the optimizer's step, bytes of its states)."""
        if optimizer not in self._of_updates:
            tape = self.updates[optimizer]
            tape = tape if self.environment.is_cpu else in_blocks(tape)
            lines = tuple(line for known in peak_lines(tape).values() for line in known)
            states = sum(int(one.fixed) for one in tape.tensors if one.kind in LASTING)
            self._of_updates[optimizer] = lines, states
        return self._of_updates[optimizer]

    def _wasted_bytes(self, key: StepKey, optimizer: UpdateKey, size: int, accumulates: bool) -> int:
        """Reserved less allocated: simulated at powers of two, in a straight line between them."""
        if self.environment.is_cpu or not self.steps[key].tapes:
            return 0
        low = 1 << (size.bit_length() - 1)
        share = (size - low) / low
        first = self._simulated(key, optimizer, low, accumulates)
        second = self._simulated(key, optimizer, 2 * low, accumulates) if share else first
        return int(first + share * (second - first))

    def _simulated(self, key: StepKey, optimizer: UpdateKey, size: int, accumulates: bool) -> int:
        place = (key, optimizer, size, accumulates)
        if place not in self._wasted:
            allocator = self.simulate(key, optimizer, size, accumulates)
            self._wasted[place] = allocator.peak_reserved - allocator.peak_allocated
        return self._wasted[place]


class _Parts(dict[str, float]):
    """Bytes by kind, to which a moment's are added."""

    def plus(self, moment: Iterable[float]) -> dict[str, float]:
        return {kind: size + self.get(kind, 0.0) for kind, size in zip(KINDS, moment, strict=True)}


def memory_model(
    answer: Mapping[str, Any],
    wanted: Wanted,
    environment: Environment,
    base: Mapping[str, Any],
    context_bytes: int | None = None,
    keeps_gradients: bool = False,
) -> MemoryModel:
    """The model that a `trace` order's answer makes. context_bytes: default the environment's, else a typical one."""
    failures: dict[Any, str] = {}
    notes = list(answer["notes"])
    counts, on_cpu = answer["counts"], environment.is_cpu
    steps: dict[StepKey, Step] = {}
    for key, told in zip(wanted.steps, answer["steps"], strict=True):
        try:
            steps[key] = _step(told, counts, on_cpu)
        except NotTraced as error:
            failures[key] = str(error)
    updates: dict[UpdateKey, MemoryTrace] = {}
    for name, told in zip(wanted.updates, answer["updates"], strict=True):
        if "error" in told:
            failures[name] = told["error"]
        else:
            updates[name] = MemoryTrace.from_dict(told["tape"])
    if context_bytes is None:
        context_bytes = environment.context_bytes
        if not on_cpu and not context_bytes:
            context_bytes = TYPICAL_CONTEXT
            notes.append(f"context of {TYPICAL_CONTEXT >> 20} MiB assumed: none was measured on this device")
    return MemoryModel(
        environment,
        base,
        tuple(answer["weights"]),
        tuple(answer["batch"]),
        steps,
        updates,
        failures,
        tuple(notes),
        context_bytes,
        keeps_gradients,
        answer.get("arithmetic"),
        answer.get("sample_flops", {}),
    )


def _step(told: Mapping[str, Any], counts: list[int], on_cpu: bool) -> Step:
    if "error" in told:
        raise NotTraced(told["error"])
    weights = tuple(told["weights"]) if "weights" in told else None
    if "peaks" in told:
        return Step({}, {0: _straight_lines(told["peaks"], max(counts, default=0), on_cpu)}, weights)
    tapes = {int(size): MemoryTrace.from_dict(one) for size, one in told["tapes"].items()}
    found = {size: tape for size, tape in tapes.items() if size == 1}
    small, large = sorted(size for size in tapes if size > 1)
    line = between(tapes[small], small, tapes[large], large)
    if line is None:
        raise NotTraced("what it makes does not grow in a straight line with the micro-batch")
    found[0] = line
    if not told["whole"]:
        try:
            found = {size: repeated(tape, counts) for size, tape in found.items()}
        except NotPeriodic as error:
            raise NotTraced(str(error)) from error
    lines = {size: peak_lines(tape if on_cpu else in_blocks(tape)) for size, tape in found.items()}
    return Step(found, lines, weights)


def _straight_lines(peaks: list[Any], layers: int, on_cpu: bool) -> dict[str, tuple[Line, ...]]:
    """Phase -> one line, extended from the peaks of few layers."""
    known: dict[str, list[tuple[int, int, Line]]] = {}
    for count, size, told in peaks:
        tape = MemoryTrace.from_dict(told)
        for phase, lines in peak_lines(tape if on_cpu else in_blocks(tape)).items():
            best = max(lines, key=lambda line: line.total_at(size))
            known.setdefault(phase, []).append((count, size, best))
    return {phase: (straight(points, layers),) for phase, points in known.items()}
