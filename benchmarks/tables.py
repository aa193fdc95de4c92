"""Recorded tables, opened: every configuration of a space with what its probes really measured."""

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from autotune.core import Configuration, Measurement, Outcome, Step
from autotune.core.measurement import pooled
from autotune.probe import ProbeOptions
from autotune.sampler.observation import observed
from autotune.sampler.physics import expected_work
from autotune.sampler.prior import Prior, roofline
from autotune.space.search_space import SearchSpace

STEP_TIMES = [field.name for field in fields(Step) if field.name == "seconds" or field.name.endswith("_s")]
FOLDER = Path(__file__).parents[1] / "tests" / "data" / "tables"
BUDGETS = (0.35, 0.5, 0.75, 1.0)
"""Memory budgets as shares of the way from the least to the highest peak of the table."""
ROUNDS = 3
NAMES = ("encoder", "decoder", "encoder-decoder", "vision", "mixture-of-experts")
OWN = {
    "micro_batch_size": 8,
    "checkpointing": "none",
    "precision": "fp32",
    "optimizer": "adamw_torch_fused",
    "workers": 0,
}
"""What the Trainer does where nothing is set: the baseline."""
RECORDED_NOISE = 0.09
"""Standard deviation of the logarithm of the speeds of a table's probes of one configuration: 8.0, 8.8, 9.1, 8.7 and 9.9 %."""

DRIFT_PROBES, DRIFT_GRID = 10, 0.05
"""Time constant of the machine's drift, in probes of the baseline; distance of the points that are drawn, in time constants."""


@dataclass(frozen=True)
class Row:
    """One probe of a table; again: 0, or the round in which it was measured again."""

    configuration: Configuration
    measurement: Measurement
    again: int = 0

    def line(self) -> str:
        """As text: no log, settings or system state, nothing that is empty, seconds to ten microseconds, steps as lists."""
        told = self.measurement.to_dict() | {"system_state": {}, "settings": {}, "asked": {}}
        told["steps"] = [list(step.values()) for step in told["steps"]]
        kept = {name: rounded(value) for name, value in told.items() if value or name == "observed_warnings"}
        return json.dumps({"again": self.again, "configuration": self.configuration.to_dict(), "measurement": kept})

    @classmethod
    def read(cls, line: str) -> "Row":
        told = json.loads(line)
        names = [field.name for field in fields(Step)]
        told["measurement"]["steps"] = [dict(zip(names, step, strict=True)) for step in told["measurement"]["steps"]]
        measurement = Measurement.from_dict(told["measurement"])
        return cls(Configuration.from_dict(told["configuration"]), measurement, told["again"])


def rounded(told: object) -> object:
    if isinstance(told, float):
        return round(told, 5)
    return [rounded(value) for value in told] if isinstance(told, list | tuple) else told


@dataclass(frozen=True)
class Table:
    """measured: configuration -> its first measurement, then those of the rounds in which it was measured again.

    estimates: configuration -> peak bytes by the estimate. rates: precision -> operations / second of the device.
    arithmetic: `flops` of a sample and `kernels` of a micro-step.
    """

    name: str
    measured: Mapping[Configuration, list[Measurement]]
    estimates: Mapping[Configuration, int]
    rates: Mapping[str, float]
    arithmetic: Mapping[str, float]

    def informs(self, prior: Prior) -> Prior:
        """The prior with what is known of this model and device before any probe, as `study.warm_start.gather` has it."""
        half_speed = roofline(**self.arithmetic, rate=self.rates["fp32"], kernel_s=prior.kernel_s)
        return replace(prior, half_speed=half_speed, work=expected_work(self.space.values, self.rates))

    @cached_property
    def space(self) -> SearchSpace:
        names = ["micro_batch_size", *dict(next(iter(self.measured)).settings)]
        values = {name: tuple(dict.fromkeys(item.values[name] for item in self.measured)) for name in names}
        for ordered in ("micro_batch_size", "workers"):
            values[ordered] = tuple(sorted(values[ordered]))
        size = next(iter(self.measured)).global_batch_size
        settings = {name: OWN[name] for name in names if name != "micro_batch_size"}
        return SearchSpace(self.name, size, values, Configuration.exact(size, 8, settings))

    @cached_property
    def speeds(self) -> Mapping[Configuration, float]:
        """Samples / second: of the rounds together where it was measured again, else of the first measurement."""
        return {
            item: float(pooled(known[1:] or known).samples_per_second or 0.0) for item, known in self.measured.items()
        }

    @cached_property
    def peaks(self) -> Mapping[Configuration, int]:
        """Peak bytes of the first measurement."""
        return {item: known[0].peak_bytes or 0 for item, known in self.measured.items()}

    @property
    def baseline_seconds(self) -> float:
        """Seconds of the baseline's first probe."""
        return self.measured[self.space.baseline][0].probe_seconds

    def budget(self, share: float) -> int:
        low, high = min(self.peaks.values()), max(self.peaks.values())
        return int(low + share * (high - low))

    def optimum(self, budget: int) -> float:
        """The highest speed that fits, of those that were measured again."""
        return max(
            self.speeds[item] for item, known in self.measured.items() if len(known) > 1 and self.peaks[item] <= budget
        )


@dataclass
class TableProbe:
    """A probe that answers with a table's measurements under a memory budget.

    Without a noise these are the real ones: a search's probe gets one of a configuration's, drawn by the seed; a confirmation
    the one of its round. With a noise (standard deviation of the logarithm of a probe's speed) each probe is drawn around the
    configuration's pooled speed: one factor for all its steps, as processes differ, and its steps' own deviations as
    recorded, in proportion to the noise.

    drift: of the machine: all speeds are higher or lower by one factor, which wanders with the time at which a probe begins
    (standard deviation of its logarithm). clock: seconds of virtual time; by default those of all measurements before.
    """

    table: Table
    budget: int
    seed: int
    noise: float | None = None
    drift: float = 0.0
    clock: Callable[[], float] | None = None
    spent_s: float = 0.0

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        started_s = self.spent_s if self.clock is None else self.clock()
        measurement = replace(self._measured(configuration, options, started_s), started_s=started_s)
        self.spent_s += measurement.probe_seconds
        return measurement

    def _measured(self, configuration: Configuration, options: ProbeOptions, now_s: float) -> Measurement:
        measured, peak = self.table.measured[configuration], self.table.peaks[configuration]
        first, rounds = measured[0], measured[1:] or measured
        if peak > self.budget:
            # What torch's allocator is refused is one tensor, not all that would have followed.
            return Measurement(
                Outcome.OUT_OF_MEMORY,
                reason="the recorded peak lies above the budget",
                where="forward",
                accumulation_steps=configuration.gradient_accumulation_steps,
                allowed_bytes=self.budget,
                held_bytes=self.budget,
                refused_bytes=min(peak - self.budget, self.budget // 50),
                probe_seconds=first.probe_seconds - sum(step.seconds for step in first.steps),
            )
        rng = random.Random(f"{self.seed} {configuration}" + f" {options.slot.round}" * (self.noise is not None))
        if options.slot.round:
            drawn = rounds[(options.slot.round - 1) % len(rounds)]
        else:
            drawn = rng.choice(measured) if self.noise is None else first
        if self.noise is not None:
            speed = self.table.speeds[configuration] * math.exp(rng.gauss(0.0, self.noise))
            drawn = replace(drawn, steps=quieter(drawn, speed, self.noise / RECORDED_NOISE))
        if self.drift:
            moved = wandering(self.seed, now_s / (DRIFT_PROBES * self.table.baseline_seconds))
            speed = float(drawn.samples_per_second or 0.0) * math.exp(self.drift * moved)
            drawn = replace(drawn, steps=quieter(drawn, speed, 1.0))
        facts = {"peak_device_bytes": first.peak_device_bytes, "peak_file_bytes": first.peak_file_bytes}
        return replace(drawn, allowed_bytes=self.budget, micro_batch_bytes=first.micro_batch_bytes, **facts)


def wandering(seed: int, time: float) -> float:
    """An Ornstein-Uhlenbeck process of mean 0 and standard deviation 1 at this time, in time constants; a line between the
    points of a grid (DRIFT_GRID)."""
    rng = random.Random(f"drift {seed}")
    keep = math.exp(-DRIFT_GRID)
    points, share = divmod(time / DRIFT_GRID, 1.0)
    before = after = rng.gauss(0.0, 1.0)
    for _ in range(int(points) + 1):
        before, after = after, keep * after + math.sqrt(1 - keep**2) * rng.gauss(0.0, 1.0)
    return before + share * (after - before)


def quieter(measurement: Measurement, speed: float, share: float) -> tuple[Step, ...]:
    """The steps at this mean speed (samples / second), with this share of their deviations."""
    seconds = [step.seconds for step in measurement.composed_steps]
    mean = fmean(seconds)
    wanted = sum(step.samples for step in measurement.composed_steps) / len(seconds) / speed
    ratios = (wanted * max(0.1, 1 + share * (own / mean - 1)) / own for own in seconds)
    return tuple(_slower(step, ratio) for step, ratio in zip(measurement.steps, ratios, strict=True))


def _slower(step: Step, ratio: float) -> Step:
    times = {name: getattr(step, name) * ratio for name in STEP_TIMES}
    return replace(step, **times)


ALIKE = ", alike"
"""After a table's name: its configurations differ only as their computations and optimizers do (`alike`)."""


def alike(table: Table) -> Table:
    """The table without what single probes err by: micro-steps that compute the same take as long on average, and so do steps
    of one optimizer."""
    micro: dict[Any, list[float]] = {}
    optimizer: dict[Any, list[float]] = {}
    computing = ("micro_batch_size", "checkpointing", "precision")
    for configuration, measured in table.measured.items():
        values = configuration.values
        for seen in (observed(configuration, measurement) for measurement in measured):
            micro.setdefault(tuple(values[name] for name in computing), []).append(seen.micro_step_s or 0.0)
            optimizer.setdefault(values["optimizer"], []).append(seen.optimizer_step_s)
    rows = {}
    for configuration, measured in table.measured.items():
        values, size = configuration.values, configuration.global_batch_size
        update = geometric_mean(optimizer[values["optimizer"]])
        in_steps = configuration.gradient_accumulation_steps * geometric_mean(
            micro[tuple(values[name] for name in computing)]
        )
        steps = quieter(measured[0], size / (in_steps + update), 1.0)
        rows[configuration] = [replace(measured[0], steps=tuple(replace(step, optimizer_s=update) for step in steps))]
    return replace(table, name=table.name + ALIKE, measured=rows)


def read_table(name: str) -> Table:
    """The recorded table, `alike` where its name says so.

    Raises FileNotFoundError where it was never recorded, KeyError where it has no estimates yet."""
    if name.endswith(ALIKE):
        return alike(read_table(name.removesuffix(ALIKE)))
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    known = json.loads((FOLDER / f"{name}.known.json").read_text(encoding="utf-8"))
    measured: dict[Configuration, list[Measurement]] = {}
    for row in sorted(map(Row.read, lines[1:]), key=lambda row: row.again):
        measured.setdefault(row.configuration, []).append(row.measurement)
    estimates = {Configuration.from_dict(item["configuration"]): item["bytes"] for item in known["estimates"]}
    return Table(name, measured, estimates, known["rates"], known["arithmetic"])


def recorded() -> list[str]:
    """Names of the tables that were recorded."""
    return [name for name in NAMES if (FOLDER / f"{name}.known.json").exists()]
