"""Methods of the Hugging Face guides on one GPU: their figures, and those measured on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from autotune.core import Configuration, Environment, Interval, Serializable, Trial, Value, Workload
from autotune.core.note import Note
from autotune.core.warning import ResultWarning
from autotune.report.trial_text import interval_fields
from autotune.space.settings import SETTINGS, Context

SAMPLES = 512
"""Samples that the guides train on; all times are for these."""
MICRO_STEPS = 4
"""Micro-steps of a step when the guides accumulate: four of 1 sample, instead of 4 at once."""
GLOBAL_BATCH_SIZE = 4
TASK = "sequence-classification"
THEIR_MODEL, THEIR_MACHINE = "bert-large", "one V100 of 16 GB, 2022"


@dataclass(frozen=True)
class Figures(Serializable):
    """Printed results of a run of the guides: seconds for all samples, samples / second, device memory by NVML in bytes."""

    seconds: float
    samples_per_second: float
    peak_bytes: int


@dataclass(frozen=True)
class GuideMethod:
    """One method of the guides. GA: gradient accumulation; GC: gradient checkpointing.

    micro_steps: of a step. theirs: the guides' figures, None if they have no such run. instead_of: the method that this
    one replaces because it cannot run here; ruled_out: why this one cannot run here; both else empty.
    """

    name: str
    micro_steps: int
    checkpointing: str
    precision: str
    optimizer: str
    theirs: Figures | None = None
    instead_of: str = ""
    ruled_out: str = ""

    def configuration(self, global_batch_size: int) -> Configuration:
        """Exactly this method; raises ValueError if its micro-steps do not divide the global batch size."""
        micro, rest = divmod(global_batch_size, self.micro_steps)
        if rest:
            raise ValueError(f"{self.micro_steps} micro-steps do not divide a global batch of {global_batch_size}")
        return Configuration.exact(global_batch_size, micro, self.settings)

    @property
    def settings(self) -> dict[str, Value]:
        return {"checkpointing": self.checkpointing, "precision": self.precision, "optimizer": self.optimizer}

    def reason_against(self, environment: Environment, workload: Workload) -> str:
        """Reason why it cannot run here; else empty."""
        reasons = {
            f"{name} {value}": SETTINGS[name].unavailable(value, Context(environment, workload))
            for name, value in self.settings.items()
        }
        return "; ".join(f"{setting}: {reason}" for setting, reason in reasons.items() if reason)


_RUNS = (
    ("vanilla", 1, "none", "fp32", "adamw_torch", 57.82, 8.86, 14949),
    ("GA", MICRO_STEPS, "none", "fp32", "adamw_torch", 66.03, 7.75, 8681),
    ("GA + GC", MICRO_STEPS, "full", "fp32", "adamw_torch", 85.47, 5.99, 6775),
    ("fp16", 1, "none", "fp16", "adamw_torch", 27.46, 18.64, 13939),
    ("fp16 + GA + GC", MICRO_STEPS, "full", "fp16", "adamw_torch", 50.76, 10.09, 7275),
    ("Adafactor", 1, "none", "fp32", "adafactor", 64.31, 7.96, 12295),
    ("Adafactor + fp16 + GA + GC", MICRO_STEPS, "full", "fp16", "adafactor", 56.54, 9.06, 4847),
    ("8-bit Adam", 1, "none", "fp32", "adamw_bnb_8bit", 55.95, 9.15, 13085),
    ("8-bit Adam + fp16 + GA + GC", MICRO_STEPS, "full", "fp16", "adamw_bnb_8bit", 49.46, 10.35, 5363),
)
"""Runs of "Efficient Training on a Single GPU", transformers 4.20, in its order: seconds, samples / second, and MiB by NVML."""

LADDER = tuple(GuideMethod(*run[:5], Figures(run[5], run[6], run[7] * 2**20)) for run in _RUNS)


def methods_for(environment: Environment, workload: Workload) -> Iterator[GuideMethod]:
    """The guides' methods in order, each with why it cannot run here; followed by its bf16 version if only that can."""
    for method in LADDER:
        reason = method.reason_against(environment, workload)
        yield replace(method, ruled_out=reason)
        if reason and method.precision == "fp16":
            name = method.name.replace("fp16", "bf16")
            other = replace(method, name=name, precision="bf16", theirs=None, instead_of=method.name)
            if not other.reason_against(environment, workload):
                yield other


@dataclass(frozen=True)
class GuideRow:
    """A method and its trial: None if it is not measured yet; unsupported if it cannot run here.

    speed_ratio, peak_ratio: over the vanilla run's, None if one of them is unknown.
    """

    method: GuideMethod
    trial: Trial | None
    speed_ratio: float | None = None
    peak_ratio: float | None = None

    @property
    def speed(self) -> Interval | None:
        """Samples / second with its 95 % interval; None if the run did not complete within its memory."""
        return self.trial.samples_per_second if self.trial and self.trial.feasible else None

    @property
    def seconds(self) -> float | None:
        """Seconds of SAMPLES samples, or None."""
        return SAMPLES / self.speed if self.speed else None

    @property
    def peak_bytes(self) -> int | None:
        return self.trial.peak_bytes if self.trial and self.trial.feasible else None

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        return self.trial.final.warnings if self.trial else ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data: speeds in samples / second, peaks in bytes."""
        final = self.trial and self.trial.final
        return {
            "method": self.method.name,
            "instead_of": self.method.instead_of,
            "outcome": final.outcome.value if final else "not measured",
            "reason": final.reason if final else "",
            "seconds": self.seconds,
            **interval_fields("samples_per_second", self.speed),
            "peak_bytes": self.peak_bytes,
            "speed_of_vanilla": self.speed_ratio,
            "peak_of_vanilla": self.peak_ratio,
            "warnings": [warning.to_dict() for warning in self.warnings],
            "guides": self.method.theirs and self.method.theirs.to_dict(),
        }


@dataclass(frozen=True)
class Ladder:
    """The guides' methods on this machine, as far as they are measured.

    methods: all, in order; trials: of the first ones. folder: of its files.
    """

    methods: tuple[GuideMethod, ...]
    workload: Workload
    environment: Environment
    global_batch_size: int
    memory_limit_bytes: int
    allowed_bytes: int
    trials: tuple[Trial, ...] = ()
    notes: tuple[Note, ...] = ()
    folder: str = ""

    @property
    def rows(self) -> list[GuideRow]:
        """All methods, with the trials of those that are measured."""
        trials = [*self.trials, *[None] * (len(self.methods) - len(self.trials))]
        rows = [GuideRow(method, trial) for method, trial in zip(self.methods, trials, strict=True)]
        return [
            replace(
                row,
                speed_ratio=ratio(row.speed, rows[0].speed),
                peak_ratio=ratio(row.peak_bytes, rows[0].peak_bytes),
            )
            for row in rows
        ]

    @property
    def feasible(self) -> list[GuideRow]:
        """Methods that completed within their memory."""
        return [row for row in self.rows if row.speed]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints and guide.json holds."""
        size = self.global_batch_size
        return {
            "model": self.workload.name,
            "task": self.workload.task,
            "sequence_length": self.workload.sequence_length,
            "data": self.workload.data_identity,
            "global_batch_size": size,
            "device": self.environment.device,
            "environment": self.environment.identity(),
            "memory_limit_bytes": self.memory_limit_bytes,
            "allowed_bytes": self.allowed_bytes,
            "samples": SAMPLES,
            "rungs": [row.to_dict() | {"configuration": row.method.configuration(size).to_dict()} for row in self.rows],
            "guides": {"model": THEIR_MODEL, "machine": THEIR_MACHINE},
            "notes": [note.to_dict() for note in self.notes],
        }


def ratio(value: float | None, reference: float | None) -> float | None:
    """value / reference; None if one of them is unknown."""
    return value / reference if value is not None and reference else None
