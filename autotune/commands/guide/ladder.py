"""Ladders: published methods one after another, their authors' figures, and those measured on this machine."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.core import Configuration, Environment, Interval, Serializable, Trial, Value, Workload
from autotune.core.note import Note
from autotune.core.warning import ResultWarning
from autotune.judge.objective import speed
from autotune.report.trial_text import interval_fields
from autotune.space.settings import SETTINGS, Context, learning_differences

MICRO_STEPS = 4
"""Micro-steps of a step when the guides accumulate: four of 1 sample, instead of 4 at once."""
GLOBAL_BATCH_SIZE = 4
SEQUENCE_CLASSIFICATION, CAUSAL_LM = "sequence-classification", "causal-lm"
PER_SECOND = {"samples_per_second": "samples/s", "tokens_per_second": "tokens/s"}


@dataclass(frozen=True)
class Figures(Serializable):
    """Printed results of a run of a ladder's authors: samples or tokens / second, and device memory in bytes."""

    speed: float
    peak_bytes: int


@dataclass(frozen=True)
class GuideMethod:
    """One method of a ladder. GA: gradient accumulation; GC: gradient checkpointing.

    settings: all that it sets. micro_steps: of a step. theirs: its authors' figures, None if they have no such run. instead_of:
    the method that this one replaces because it cannot run here; ruled_out: why this one cannot run here; both else empty.
    """

    name: str
    settings: Mapping[str, Value]
    micro_steps: int = 1
    theirs: Figures | None = None
    instead_of: str = ""
    ruled_out: str = ""

    def configuration(self, global_batch_size: int) -> Configuration:
        """Exactly this method; raises ValueError if its micro-steps do not divide the global batch size."""
        micro, rest = divmod(global_batch_size, self.micro_steps)
        if rest:
            raise ValueError(f"{self.micro_steps} micro-steps do not divide a global batch of {global_batch_size}")
        return Configuration.exact(global_batch_size, micro, self.settings)


def reason_against(settings: Mapping[str, Value], environment: Environment, workload: Workload) -> str:
    """Reason why these values cannot be used here; else empty."""
    context = Context(environment, workload)
    reasons = {f"{name} {value}": SETTINGS[name].unavailable(value, context) for name, value in settings.items()}
    return "; ".join(f"{setting}: {reason}" for setting, reason in reasons.items() if reason)


_GUIDES = (
    ("vanilla", 1, "none", "fp32", "adamw_torch", 8.86, 14949),
    ("GA", MICRO_STEPS, "none", "fp32", "adamw_torch", 7.75, 8681),
    ("GA + GC", MICRO_STEPS, "full", "fp32", "adamw_torch", 5.99, 6775),
    ("fp16", 1, "none", "fp16", "adamw_torch", 18.64, 13939),
    ("fp16 + GA + GC", MICRO_STEPS, "full", "fp16", "adamw_torch", 10.09, 7275),
    ("Adafactor", 1, "none", "fp32", "adafactor", 7.96, 12295),
    ("Adafactor + fp16 + GA + GC", MICRO_STEPS, "full", "fp16", "adafactor", 9.06, 4847),
    ("8-bit Adam", 1, "none", "fp32", "adamw_bnb_8bit", 9.15, 13085),
    ("8-bit Adam + fp16 + GA + GC", MICRO_STEPS, "full", "fp16", "adamw_bnb_8bit", 10.35, 5363),
)
"""Runs of "Efficient Training on a Single GPU", transformers 4.20, in its order: samples / second, and MiB by NVML."""

_STEPS: tuple[tuple[str, dict[str, Value], float | None, float | None], ...] = (
    ("padded", {}, 2091, 25.5),
    ("+ packing", {"packing": "flattening"}, 7075, 60.0),
    ("+ attention kernel", {"sdpa_kernel": "cudnn"}, None, None),
    ("+ compile", {"compile": "regional"}, 8998, 51.0),
    ("+ fused loss", {"liger": "kernels_and_loss"}, 9174, 42.9),
    ("+ GC", {"checkpointing": "full"}, 7210, 24.9),
    ("+ 8-bit AdamW", {"optimizer": "adamw_bnb_8bit"}, 6960, 17.6),
    ("+ LoRA", {"lora": "16", "precision": "bf16_frozen", "optimizer": "adamw_torch_fused"}, 8210, 8.5),
    ("+ QLoRA", {"quantization": "nf4"}, 8035, 4.6),
)
"""Rungs that add to those before them: what each sets, tokens / second, and GiB by torch's allocator. Figures of torchtune's
README: Llama 3.2 3B in bf16, 4,096 tokens, one A100; its fused loss is computed in chunks, and it names no attention kernel."""


@dataclass(frozen=True)
class Guide:
    """A published ladder. training: what its authors' figures are of. objective: the speed that it compares.

    cumulative: whether a method sets what it adds to those before it, without what cannot be used here.
    """

    title: str
    methods: tuple[GuideMethod, ...]
    task: str
    objective: str
    training: str
    cumulative: bool = False

    @property
    def unit(self) -> str:
        return PER_SECOND[self.objective]

    @property
    def micro_steps(self) -> int:
        """Micro-steps that a global batch has to be divisible by."""
        return max(method.micro_steps for method in self.methods)


def _guides_method(
    name: str, micro_steps: int, checkpointing: str, precision: str, optimizer: str, speed: float, mib: int
) -> GuideMethod:
    settings = {"checkpointing": checkpointing, "precision": precision, "optimizer": optimizer}
    return GuideMethod(name, settings, micro_steps, Figures(speed, mib * 2**20))


LADDERS: Mapping[str, Guide] = {
    "2022": Guide(
        "The guides' ladder",
        tuple(_guides_method(*run) for run in _GUIDES),
        SEQUENCE_CLASSIFICATION,
        "samples_per_second",
        "bert-large, 512 tokens, batch of 4, one V100 of 16 GB, 2022",
    ),
    "2026": Guide(
        "Today's ladder",
        tuple(
            GuideMethod(
                name,
                {**({} if number else {"precision": "bf16_weights", "optimizer": "adamw_torch_fused"}), **added},
                theirs=Figures(rate, int(gib * 2**30)) if rate and gib else None,
            )
            for number, (name, added, rate, gib) in enumerate(_STEPS)
        ),
        CAUSAL_LM,
        "tokens_per_second",
        "Llama 3.2 3B, 4096 tokens, batch of 4, one A100 of 80 GB, torchtune's README",
        cumulative=True,
    ),
}
"""The ladders by their year."""


def methods_for(guide: Guide, environment: Environment, workload: Workload) -> Iterator[GuideMethod]:
    """The ladder's methods in order, each with why it cannot run here; followed by its bf16 version if only that can."""
    before: dict[str, Value] = {}
    for method in guide.methods:
        reason = reason_against(method.settings, environment, workload)
        yield replace(method, settings={**before, **method.settings}, ruled_out=reason)
        if guide.cumulative and not reason:
            before |= method.settings
        if reason and method.settings.get("precision") == "fp16":
            settings = {**method.settings, "precision": "bf16"}
            if not reason_against(settings, environment, workload):
                name = method.name.replace("fp16", "bf16")
                yield replace(method, name=name, settings=settings, theirs=None, instead_of=method.name)


@dataclass(frozen=True)
class GuideRow:
    """A method and its trial: None if it is not measured yet; unsupported if it cannot run here.

    objective: of its speed. learning: settings by which it learns differently from the first method, beyond rounding.
    speed_ratio, peak_ratio: over the first method's, None if one of them is unknown.
    """

    method: GuideMethod
    trial: Trial | None
    objective: str
    learning: tuple[str, ...] = ()
    speed_ratio: float | None = None
    peak_ratio: float | None = None

    @property
    def speed(self) -> Interval | None:
        """Samples or tokens / second with its 95 % interval; None if the run did not complete within its memory."""
        return speed(self.trial.final, self.objective) if self.trial and self.trial.feasible else None

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
            **interval_fields(self.objective, self.speed),
            "peak_bytes": self.peak_bytes,
            "speed_of_first": self.speed_ratio,
            "peak_of_first": self.peak_ratio,
            "learning": [*self.learning],
            "warnings": [warning.to_dict() for warning in self.warnings],
            "theirs": self.method.theirs and self.method.theirs.to_dict(),
        }


@dataclass(frozen=True)
class Ladder:
    """A guide's methods on this machine, as far as they are measured.

    methods: all, in order; trials: of the first ones. folder: of its files.
    """

    guide: Guide
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
        objective, added = self.guide.objective, {name for method in self.methods for name in method.settings}
        usual = {name: SETTINGS[name].values[0] for name in added}
        first = replace(self.methods[0], settings={**usual, **self.methods[0].settings}).configuration(
            self.global_batch_size
        )
        rows = [
            GuideRow(
                method, trial, objective, learning_differences(method.configuration(first.global_batch_size), first)
            )
            for method, trial in zip(self.methods, trials, strict=True)
        ]
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
            "ladder": self.guide.title,
            "rungs": [row.to_dict() | {"configuration": row.method.configuration(size).to_dict()} for row in self.rows],
            "theirs": self.guide.training,
            "notes": [note.to_dict() for note in self.notes],
        }


def ratio(value: float | None, reference: float | None) -> float | None:
    """value / reference; None if one of them is unknown."""
    return value / reference if value is not None and reference else None
