"""Projection: the answer of a study on several GPUs of one machine, computed from its measurement on one.

A step on n ranks, from the measured step on one:

    | data wait | forward and backward of a n-th of the samples | slowest rank | optimizer's step | Trainer |
       / n                       |---- exchange over the link ---|-- not overlapped: added --|
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import pstdev
from typing import Any, NamedTuple

import numpy as np

from autotune.commands.project.links import EFFICIENCY, Link, find_link
from autotune.core import Configuration, InvalidRequest, Trial
from autotune.core.configuration import RANKS
from autotune.core.errors import did_you_mean
from autotune.core.units import finite, format_bytes
from autotune.report.trial_text import plain_trial
from autotune.sampler.cost_model import CostModel
from autotune.sampler.parameters import all_values
from autotune.sampler.physics import DRAWS, each_measured
from autotune.sampler.prior import Prior
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS
from autotune.space.settings.precision import WEIGHTS
from autotune.study.result import SearchResult

MOST_RANKS = 16
"""GPUs of one machine at the most."""

GATHERS = {"none": 0, "shard_grad_op": 1, "full_shard": 2}
"""Value of setting `fsdp` -> times that a micro-step gathers all weights (Zhao et al., PyTorch FSDP, 2023)."""

HALF = ("fp16", "bf16", "bf16_frozen", WEIGHTS)
"""Precisions in which FSDP sends 16 bits: accelerate's `FullyShardedDataParallelPlugin.set_mixed_precision`."""

LITTLE = 0.02
"""Share of a step below which a loss does not count as a limit."""

UNKNOWN = (
    "NCCL's latency: many small tensors take longer than their bytes",
    "the host: ranks share its cores, its memory and its PCIe lanes",
    "data loading: ranks share disk and cores, and a loader that keeps up with one GPU may not keep up with several",
    "clocks: GPUs next to each other may run hotter, and slower",
)
"""What a measurement on one GPU cannot show."""


class Bounds(NamedTuple):
    """Lowest and highest value."""

    low: float
    high: float


class Limit(StrEnum):
    """A part of a step that does not shrink with the number of ranks as it should."""

    COMPUTE = "smaller micro-batches, which use a GPU less well"
    DATA_WAIT = "the wait for data, if the ranks share the loading"
    SLOWEST_RANK = "the wait for the slowest rank"
    OPTIMIZER = "the optimizer's step, which every rank makes"
    TRAINER = "the Trainer's own work in each step"
    EXCHANGE = "the exchange between the ranks, if nothing overlaps it"


@dataclass(frozen=True)
class ProjectedRun:
    """The answer on a number of ranks; times in seconds."""

    configuration: Configuration
    sent_bytes: float  #: by each rank in a step
    step_s: Bounds
    lost_s: Mapping[Limit, float]  #: at most, beyond a n-th of the same part on one rank
    speedup: Bounds  #: over one rank
    samples_per_second: Bounds

    @property
    def ranks(self) -> int:
        """Number of ranks, each on a GPU."""
        return self.configuration.data_parallel_size

    @property
    def efficiency(self) -> Bounds:
        """Speed-up / ranks."""
        return Bounds(self.speedup.low / self.ranks, self.speedup.high / self.ranks)

    @property
    def limit(self) -> Limit | None:
        """The largest loss; None if no loss counts."""
        largest = max(self.lost_s, key=self.lost_s.__getitem__)
        return largest if self.lost_s[largest] > LITTLE * self.step_s.high else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        bounds = {name: getattr(self, name) for name in ("step_s", "speedup", "efficiency", "samples_per_second")}
        return {
            "ranks": self.ranks,
            "configuration": self.configuration.to_dict(),
            "sent_bytes": self.sent_bytes,
            **{f"projected_{name}": {"low": low, "high": finite(high)} for name, (low, high) in bounds.items()},
            "limit": self.limit and self.limit.name.lower(),
            "lost_s": {limit.name.lower(): seconds for limit, seconds in self.lost_s.items()},
        }


@dataclass(frozen=True)
class Projection:
    """The answer of a study on several GPUs: computed from its measurement on one, not measured."""

    result: SearchResult
    link: Link
    fsdp: str
    gradient_bytes: int
    runs: Sequence[ProjectedRun]
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        """One line: the projected speed-ups."""
        speedups = ", ".join(f"{run.speedup.low:.2f}x to {run.speedup.high:.2f}x on {run.ranks}" for run in self.runs)
        return f"<Projection of {self.result.name}, not measured: {speedups}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints; times in seconds, speeds in samples / second."""
        return {
            "is_measured": False,
            "study": self.result.name,
            "device_name": self.result.environment.device_name,
            "measured_on_one": plain_trial(self.result.best, None),
            "link": self.link.to_dict() | {"efficiency": dict(zip(("low", "high"), EFFICIENCY, strict=True))},
            "fsdp": self.fsdp,
            "gradient_bytes": self.gradient_bytes,
            "projections": [run.to_dict() for run in self.runs],
            "notes": list(self.notes),
            "unknown": list(UNKNOWN),
        }


def project(result: SearchResult, link: str | float, ranks: int = 8, fsdp: str = "none") -> Projection:
    """Project the answer to 2, 4, 8, ... and `ranks` GPUs like the study's one, with the same global batch size.

    link: between the GPUs, a name of LINKS or GB/s. fsdp: as the setting; `none` is DDP.

    Raises:
        InvalidRequest: An option is wrong, or the answer cannot be projected.
        NothingFits: The study has no answer.
        SearchFailed: None of its trials completed.
    """
    between, best = find_link(link), result.best
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
        raise InvalidRequest(f"The ranks must be a whole number from 2 to {MOST_RANKS}, not {ranks!r}.", "Try 8.")
    if fsdp not in GATHERS:
        raise InvalidRequest(f"There is no sharding {fsdp!r}.", did_you_mean(fsdp, GATHERS))
    single, values = best.configuration, best.configuration.values
    if single.data_parallel_size > 1 or values.get("zero", "none") != "none":
        raise InvalidRequest(
            "Only an answer of one rank without DeepSpeed can be projected.", "Search on one GPU, and project that."
        )
    if fsdp != "none" and values.get("quantization", "none") != "none":
        raise InvalidRequest("FSDP of weights in four bits is not projected.", "Leave out --fsdp, which means DDP.")
    counts = sorted({count for count in (2, 4, 8) if count < ranks} | {ranks})
    on_ranks = {count: configuration_on(count, single) for count in counts}
    size, gradients = single.global_batch_size, _gradient_bytes(result, best)
    notes = [f"{count} ranks do not divide a global batch of {size}" for count in counts if not on_ranks[count]]
    if len(notes) == len(counts):
        raise InvalidRequest(f"No projected number of ranks divides a global batch of {size}.", "Name other --ranks.")
    if fsdp == "none" and best.peak_bytes and best.peak_bytes + gradients > result.allowed_bytes:
        notes.append(
            f"{format_bytes(gradients)} of DDP's buckets beyond the peak of {format_bytes(best.peak_bytes)} may not fit"
        )
    step = _Step(result, between, fsdp, gradients)
    runs = [step.on(configuration) for configuration in on_ranks.values() if configuration]
    return Projection(result, between, fsdp, gradients, runs, notes)


def configuration_on(ranks: int, single: Configuration) -> Configuration | None:
    """The same global batch on these ranks: with less accumulation, else a smaller micro-batch; None if they do not divide it."""
    size = single.global_batch_size
    micro = next((micro for micro in range(single.micro_batch_size, 0, -1) if size % (micro * ranks) == 0), None)
    return Configuration.exact(size, micro, {**dict(single.settings), RANKS: ranks}) if micro else None


def _gradient_bytes(result: SearchResult, answer: Trial) -> int:
    """Bytes of the gradients in their own dtype. Raises InvalidRequest if they are not known.

    Of an adapter by the estimate of its memory; an AdamW's states are twice its gradients.
    """
    workload, values = result.workload, answer.configuration.values
    size = workload.gradient_bytes
    if any(SETTINGS[name].costs.spares_gradients(value) for name, value in answer.configuration.settings):
        peak = result.estimated_peaks.get(answer.number)
        size = max(peak.split.gradients, peak.split.optimizer_states // 2) if peak else 0
    elif values.get("precision") == WEIGHTS and workload.weights_dtype == "float32":
        size //= 2
    if not size:
        raise InvalidRequest("The study does not say how many bytes of gradients the answer has.", "Search again.")
    return size


class _Step:
    """A step of the answer on one rank by its parts, in seconds."""

    def __init__(self, result: SearchResult, link: Link, fsdp: str, gradient_bytes: int) -> None:
        self._result, self._link, self._fsdp, self._gradient_bytes = result, link, fsdp, gradient_bytes
        self._single, measured = result.best.configuration, result.best.final
        self._seconds, self._wait = measured.step_time_s or 0.0, measured.data_wait_s or 0.0
        self._optimizer, self._trainer = measured.optimizer_step_time_s or 0.0, measured.overhead_time_s or 0.0
        self._backward = measured.backward_time_s or 0.0
        self._compute = (measured.forward_time_s or 0.0) + self._backward
        self._deviation = pstdev(step.seconds for step in measured.composed_steps)
        speed = result.best.samples_per_second
        if not self._compute or speed is None:
            raise InvalidRequest("The study does not say how long forward and backward take.", "Search again.")
        self._speed = speed

    def on(self, configuration: Configuration) -> ProjectedRun:
        """The projection to the ranks of this configuration."""
        ranks, is_sharded = configuration.data_parallel_size, self._fsdp != "none"
        before, after = self._single.gradient_accumulation_steps, configuration.gradient_accumulation_steps
        slower = self._micro_step_ratio(configuration.micro_batch_size)
        compute = Bounds(*(self._compute / before * after * ratio for ratio in slower))
        # DDP exchanges during the last micro-step's backward, FSDP during all micro-steps.
        overlap = compute.low if is_sharded else (self._backward or self._compute) / before * slower.low
        sent = self._sent_bytes(ranks, after)
        longest, shortest = (sent / (self._link.gigabytes_per_second * 1e9 * share) for share in EFFICIENCY)
        # The largest of n is at most (n - 1) / sqrt(2 n - 1) deviations above the mean (Hartley and David, 1954); a n-th of
        # a step deviates by 1 / sqrt(n) of what the step does.
        latest = self._deviation * (ranks - 1) / math.sqrt((2 * ranks - 1) * ranks)
        optimizer, trainer = self._optimizer / (ranks if is_sharded else 1), self._trainer * min(1.0, after / before)
        parts = {  # part -> (seconds on one rank, on each of n)
            Limit.COMPUTE: (self._compute, compute),
            Limit.DATA_WAIT: (self._wait, Bounds(self._wait / ranks, self._wait)),
            Limit.SLOWEST_RANK: (0.0, Bounds(0.0, latest)),
            Limit.OPTIMIZER: (self._optimizer, Bounds(optimizer, self._optimizer)),
            Limit.TRAINER: (self._trainer, Bounds(trainer, self._trainer)),
            Limit.EXCHANGE: (0.0, Bounds(max(0.0, shortest - overlap), longest)),
        }
        step = Bounds(*(sum(bounds[end] for _, bounds in parts.values()) for end in (0, 1)))
        lost = {limit: max(0.0, bounds.high - alone / ranks) for limit, (alone, bounds) in parts.items()}
        speedup, speed = Bounds(self._seconds / step.high, self._seconds / step.low), self._speed
        return ProjectedRun(
            configuration, sent, step, lost, speedup, Bounds(speed.low * speedup.low, speed.high * speedup.high)
        )

    def _sent_bytes(self, ranks: int, micro_steps: int) -> float:
        """Bytes that each rank sends in a step: rings (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009)."""
        share, weights, gradients = (ranks - 1) / ranks, self._result.workload.parameter_bytes, self._gradient_bytes
        if self._fsdp == "none":
            return 2 * share * gradients
        precision = self._single.values.get("precision")
        if precision in HALF and self._result.workload.weights_dtype == "float32":
            weights //= 2
            gradients //= 1 if precision == WEIGHTS else 2
        return share * (GATHERS[self._fsdp] * micro_steps * weights + gradients)

    def _micro_step_ratio(self, micro: int) -> Bounds:
        """Time of a micro-step of this size / of the answer's, by the cost model of all measurements of the study: 95 %."""
        result, answer = self._result, self._single
        if micro == answer.micro_batch_size:
            return Bounds(1.0, 1.0)
        smaller = Configuration.exact(answer.global_batch_size, micro, dict(answer.settings))
        pool = list(dict.fromkeys([*(trial.configuration for trial in result.trials), smaller]))
        base = result.baseline.configuration
        values = {name: tuple(dict.fromkeys(each.values[name] for each in pool)) for name in base.values}
        space = SearchSpace(result.name, answer.global_batch_size, values, base)
        model = CostModel(pool, all_values(space), base, Prior(), lambda configuration: 0.0, result.allowed_bytes)
        costs = model.costs(each_measured(result.trials))
        both = np.array([model.place[answer], model.place[smaller]], np.intp)
        steps, optimizer = np.exp(costs.drawn(both, DRAWS, 0)[0]), np.exp(costs.log_optimizer_step[both])
        micro_steps = np.maximum(steps - optimizer, steps / 1000) / model.points.accumulation[both]
        return Bounds(*map(float, np.quantile(micro_steps[:, 1] / micro_steps[:, 0], (0.025, 0.975))))
