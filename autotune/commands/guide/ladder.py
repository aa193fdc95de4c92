"""Ladder: the runs that the Hugging Face guides walk through on one GPU, what they read there, and what was read here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from autotune.core.configuration import Configuration, Value
from autotune.core.environment import Environment
from autotune.core.interval import Interval
from autotune.core.trial import Trial
from autotune.core.units import finite
from autotune.core.workload import Workload
from autotune.space.settings import SETTINGS, Context

MIB = 2**20
SAMPLES = 512
"""Samples that the guides train on, and to which every time here is brought."""
MICRO_STEPS = 4
"""Micro-steps of a step where the guides accumulate: four of 1 sample, instead of 4 at once."""
GLOBAL_BATCH_SIZE = 4
SEQUENCE_LENGTH = 512
TASK = "sequence-classification"
THEIR_MODEL, THEIR_MACHINE = "bert-large", "one V100 of 16 GB, 2022"


@dataclass(frozen=True)
class Figures:
    """What the guides print of a run: seconds for all samples, samples / second, device memory by NVML in bytes."""

    seconds: float
    samples_per_second: float
    peak_bytes: int

    def to_dict(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class GuideMethod:
    """One method of the ladder. GA: gradient accumulation; GC: gradient checkpointing.

    micro_steps: of a step. theirs: the guides' figures, None where they have no such run. instead_of: the rung that cannot
    run here and for which this one stands; ruled_out: why this one cannot run here; both empty else.
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
        """The rung at this global batch size, exactly; raises ValueError where the micro-steps do not divide it."""
        micro, rest = divmod(global_batch_size, self.micro_steps)
        if rest:
            raise ValueError(f"{self.micro_steps} micro-steps do not divide a global batch of {global_batch_size}")
        return Configuration.exact(global_batch_size, micro, self.settings)

    @property
    def settings(self) -> dict[str, Value]:
        return {"checkpointing": self.checkpointing, "precision": self.precision, "optimizer": self.optimizer}


def _rung(
    name: str, steps: int, settings: tuple[str, str, str], seconds: float, speed: float, mebibytes: int
) -> GuideMethod:
    return GuideMethod(name, steps, *settings, Figures(seconds, speed, mebibytes * MIB))


# "Efficient Training on a Single GPU", transformers 4.20: its runs in their order, with the time, samples/second and MB
# (MiB, as NVML counts) that it prints.
LADDER = (
    _rung("vanilla", 1, ("none", "fp32", "adamw_torch"), 57.82, 8.86, 14949),
    _rung("GA", MICRO_STEPS, ("none", "fp32", "adamw_torch"), 66.03, 7.75, 8681),
    _rung("GA + GC", MICRO_STEPS, ("full", "fp32", "adamw_torch"), 85.47, 5.99, 6775),
    _rung("fp16", 1, ("none", "fp16", "adamw_torch"), 27.46, 18.64, 13939),
    _rung("fp16 + GA + GC", MICRO_STEPS, ("full", "fp16", "adamw_torch"), 50.76, 10.09, 7275),
    _rung("Adafactor", 1, ("none", "fp32", "adafactor"), 64.31, 7.96, 12295),
    _rung("Adafactor + fp16 + GA + GC", MICRO_STEPS, ("full", "fp16", "adafactor"), 56.54, 9.06, 4847),
    _rung("8-bit Adam", 1, ("none", "fp32", "adamw_bnb_8bit"), 55.95, 9.15, 13085),
    _rung("8-bit Adam + fp16 + GA + GC", MICRO_STEPS, ("full", "fp16", "adamw_bnb_8bit"), 49.46, 10.35, 5363),
)


def rungs_here(environment: Environment, workload: Workload) -> Iterator[GuideMethod]:
    """The guides' rungs in their order, each with why it cannot run here; where bf16 can run instead, that follows it."""
    for rung in LADDER:
        reason = _why_not(rung, environment, workload)
        yield replace(rung, ruled_out=reason)
        if reason and rung.precision == "fp16":
            name = rung.name.replace("fp16", "bf16")
            other = replace(rung, name=name, precision="bf16", theirs=None, instead_of=rung.name)
            if not _why_not(other, environment, workload):
                yield other


def _why_not(rung: GuideMethod, environment: Environment, workload: Workload) -> str:
    reasons = {
        f"{name} {value}": SETTINGS[name].unavailable(value, Context(environment, workload))
        for name, value in rung.settings.items()
    }
    return "; ".join(f"{what}: {reason}" for what, reason in reasons.items() if reason)


@dataclass(frozen=True)
class GuideRow:
    """A rung and its trial: None where it is not measured yet; unsupported where it cannot run here.

    of_vanilla: its speed and its peak as shares of the vanilla run's, None where one of them is unknown.
    """

    rung: GuideMethod
    trial: Trial | None
    of_vanilla: tuple[float | None, float | None] = (None, None)

    @property
    def speed(self) -> Interval | None:
        """Samples / second with its 95 % interval; None where the run did not complete within its memory."""
        return self.trial.samples_per_second if self.trial and self.trial.feasible else None

    @property
    def seconds(self) -> float | None:
        """For as many samples as the guides train on."""
        return SAMPLES / self.speed if self.speed else None

    @property
    def peak_bytes(self) -> int | None:
        return self.trial.peak_bytes if self.trial and self.trial.feasible else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: speeds in samples / second, peaks in bytes, shares of the vanilla run."""
        final, speed = self.trial and self.trial.final, self.speed
        return {
            "method": self.rung.name,
            "instead_of": self.rung.instead_of,
            "outcome": final.outcome.value if final else "not measured",
            "reason": final.reason if final else "",
            "seconds": self.seconds,
            "samples_per_second": speed and speed.value,
            "samples_per_second_low": speed and speed.low,
            "samples_per_second_high": finite(speed and speed.high),
            "peak_bytes": self.peak_bytes,
            "speed_of_vanilla": self.of_vanilla[0],
            "peak_of_vanilla": self.of_vanilla[1],
            "warnings": list(final.warnings) if final else [],
            "guides": self.rung.theirs and self.rung.theirs.to_dict(),
        }


@dataclass(frozen=True)
class Ladder:
    """The ladder on this machine, as far as it is known.

    rungs: all of them, in order; trials: of the first ones, number by number. folder: where its files go.
    """

    rungs: tuple[GuideMethod, ...]
    workload: Workload
    environment: Environment
    global_batch_size: int
    memory_limit_bytes: int
    allowed_bytes: int
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    folder: str = ""

    @property
    def climbed(self) -> list[GuideRow]:
        """Every rung with its trial, those that are not measured yet too."""
        trials = [*self.trials, *[None] * (len(self.rungs) - len(self.trials))]
        plain = [GuideRow(rung, trial) for rung, trial in zip(self.rungs, trials, strict=True)]
        vanilla = plain[0]
        return [
            replace(one, of_vanilla=(share(one.speed, vanilla.speed), share(one.peak_bytes, vanilla.peak_bytes)))
            for one in plain
        ]

    @property
    def is_theirs(self) -> bool:
        """Whether the guides trained the same: BERT large on random tokens, same task, length and batch."""
        config = self.workload.model_config
        shape = tuple(config.get(name) for name in ("model_type", "hidden_size", "num_hidden_layers"))
        asked = (self.workload.task, self.workload.sequence_length, self.global_batch_size, self.workload.data)
        return shape == ("bert", 1024, 24) and asked == (TASK, SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE, "")

    @property
    def known(self) -> list[GuideRow]:
        """The rungs that ran to their end within their memory."""
        return [one for one in self.climbed if one.speed]

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints and guide.json holds."""
        return {
            "model": self.workload.name,
            "task": self.workload.task,
            "sequence_length": self.workload.sequence_length,
            "data": self.workload.data_identity,
            "global_batch_size": self.global_batch_size,
            "device": self.environment.device,
            "environment": self.environment.identity(),
            "memory_limit_bytes": self.memory_limit_bytes,
            "allowed_bytes": self.allowed_bytes,
            "samples": SAMPLES,
            "rungs": [one.to_dict() | {"configuration": _plain(self, one)} for one in self.climbed],
            "guides": {"model": THEIR_MODEL, "machine": THEIR_MACHINE, "same_training": self.is_theirs},
            "notes": list(self.notes),
        }


def share(one: float | None, whole: float | None) -> float | None:
    """one / whole; None where one of them is unknown."""
    return one / whole if one is not None and whole else None


def _plain(ladder: Ladder, one: GuideRow) -> dict[str, Any]:
    return one.rung.configuration(ladder.global_batch_size).to_dict()
