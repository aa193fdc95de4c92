"""Recorded tables, opened: every configuration of a space with what its probes measured, or would have by what was measured.

A probe of a search that is replayed on a table answers with these, with a noise and a drift of its own.
"""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, geometric_mean, median, stdev

import numpy as np

from autotune.core import Configuration, Measurement, Outcome, Step, Value
from autotune.probe import ProbeOptions
from autotune.sampler.physics import expected_work
from autotune.sampler.prior import Prior, roofline
from autotune.space.search_space import SearchSpace

STEP_TIMES = [field.name for field in fields(Step) if field.name == "seconds" or field.name.endswith("_s")]
FOLDER = Path(__file__).parents[1] / "tests" / "data" / "tables"
BUDGETS = (0.35, 0.5, 0.75, 1.0)
"""Memory budgets as shares of the way from the least to the highest peak of the table."""
JUDGES = ("bert-deep", "bert-texts", "roberta-short", "t5-small", "vit-96", "vit-photographs")
"""Tables by which no constant was chosen, drawn by lot before any was: random.Random(20261128).sample(sorted(all), 6)."""
TRAINING = (
    *("bert-wide", "gpt2-texts", "gpt2-tiny", "gpt2-vocabulary", "llama-192", "llama-256", "llama-long"),
    *("llama-lora", "mixtral", "t5-wide"),
)
NAMES = (*TRAINING, *JUDGES)
DESIGN: dict[str, Value] = {"optimizer": "adamw_torch_fused", "workers": 0}
"""Values at which every micro-batch size, checkpointing and precision was measured."""
STEPS_DIFFER = 0.03
"""Least standard deviation of a step's seconds within a table's probes, as a share, that is taken for the noise of a probe."""
DRIFT_PROBES, DRIFT_GRID = 10, 0.05
"""Time constant of the machine's drift, in probes of the baseline; distance of the points that are drawn, in time constants."""


@dataclass(frozen=True)
class Row:
    """One probe of a table."""

    configuration: Configuration
    measurement: Measurement

    def line(self) -> str:
        """As text: no log, settings or system state, nothing that is empty, seconds to ten microseconds, steps as lists."""
        told = self.measurement.to_dict() | {"system_state": {}, "settings": {}, "asked": {}}
        told["steps"] = [list(step.values()) for step in told["steps"]]
        kept = {name: rounded(value) for name, value in told.items() if value or name == "observed_warnings"}
        return json.dumps({"configuration": self.configuration.to_dict(), "measurement": kept})

    @classmethod
    def read(cls, line: str) -> "Row":
        told = json.loads(line)
        names = [field.name for field in fields(Step)]
        told["measurement"]["steps"] = [dict(zip(names, step, strict=True)) for step in told["measurement"]["steps"]]
        return cls(Configuration.from_dict(told["configuration"]), Measurement.from_dict(told["measurement"]))


def rounded(told: object) -> object:
    if isinstance(told, float):
        return round(told, 5)
    return [rounded(value) for value in told] if isinstance(told, list | tuple) else told


@dataclass(frozen=True)
class Table:
    """measured: each configuration of the space -> its measurement, or the composed one. estimates: its peak bytes by the
    estimate. rates: precision -> operations / second of the device. arithmetic: `flops` of a sample and `kernels` of a
    micro-step.
    """

    name: str
    baseline: Configuration
    measured: Mapping[Configuration, Measurement]
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
        return SearchSpace(self.name, self.baseline.global_batch_size, values, self.baseline)

    @cached_property
    def speeds(self) -> Mapping[Configuration, float]:
        """Samples / second."""
        return {item: float(measured.samples_per_second or 0.0) for item, measured in self.measured.items()}

    @cached_property
    def steps_differ(self) -> float:
        """Standard deviation of a step's seconds within a probe, as a share; in the median of the table."""
        each = ([step.seconds for step in measured.composed_steps] for measured in self.measured.values())
        return max(STEPS_DIFFER, median(stdev(seconds) / fmean(seconds) for seconds in each if len(seconds) > 1))

    @cached_property
    def peaks(self) -> Mapping[Configuration, int]:
        """Peak bytes."""
        return {item: measured.peak_bytes or 0 for item, measured in self.measured.items()}

    def padded(self, configuration: Configuration) -> float:
        """Arithmetic of a sample as it is padded, of that of the largest micro-batch's; 1 if all samples are as long."""
        lengths = {item.micro_batch_size: measured.tokens_per_sample for item, measured in self.measured.items()}
        own, longest = lengths[configuration.micro_batch_size], max(length or 0.0 for length in lengths.values())
        return own / longest if own else 1.0

    @property
    def baseline_seconds(self) -> float:
        """Seconds of the baseline's probe."""
        return self.measured[self.baseline].probe_seconds

    def budget(self, share: float) -> int:
        low, high = min(self.peaks.values()), max(self.peaks.values())
        return int(low + share * (high - low))

    def optimum(self, budget: int) -> float:
        """The highest speed that fits."""
        return max(speed for item, speed in self.speeds.items() if self.peaks[item] <= budget)


@dataclass
class TableProbe:
    """A probe that answers with a table's measurements under a memory budget.

    noise: standard deviation of the logarithm of a probe's speed: one factor for all its steps, as processes differ; its steps'
    own deviations are in proportion, so that the table's usual ones are at most this. equal: every configuration is as fast as
    the baseline.

    drift: of the machine: all speeds are higher or lower by one factor, which wanders with the time at which a probe begins
    (standard deviation of its logarithm). clock: seconds of virtual time; by default those of all measurements before.
    """

    table: Table
    budget: int
    seed: int
    noise: float = 0.0
    drift: float = 0.0
    equal: bool = False
    clock: Callable[[], float] | None = None
    spent_s: float = 0.0

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        started_s = self.spent_s if self.clock is None else self.clock()
        measurement = replace(self._measured(configuration, options, started_s), started_s=started_s)
        self.spent_s += measurement.probe_seconds
        return measurement

    def _measured(self, configuration: Configuration, options: ProbeOptions, now_s: float) -> Measurement:
        measured, peak = self.table.measured[configuration], self.table.peaks[configuration]
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
                probe_seconds=measured.probe_seconds - sum(step.seconds for step in measured.steps) / 2,
            )
        rng = random.Random(f"{self.seed} {self.table.name} {self.budget} {configuration} {options.slot.round}")
        moved = wandering(self.seed, now_s / (DRIFT_PROBES * self.table.baseline_seconds)) if self.drift else 0.0
        speed = self.table.speeds[self.table.baseline if self.equal else configuration]
        speed *= math.exp(rng.gauss(0.0, self.noise) + self.drift * moved)
        return replace(
            measured, steps=quieter(measured, speed, self.noise / self.table.steps_differ), allowed_bytes=self.budget
        )


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


@dataclass(frozen=True, eq=False)
class Design:
    """Measurements of a table, and those that follow from them for the configurations that were not measured.

    What one computes was measured with DESIGN's optimizer and workers, and some of it with others. Another optimizer's step takes
    as long as in the geometric mean of its measurements, and its peak is as much higher as in their median. Workers change
    micro-steps and their wait by the factors that were measured; between sizes on a line over the logarithm, whatever the
    precision, unless each was.
    """

    measured: Mapping[Configuration, Measurement]

    def measurement(self, wanted: Configuration) -> Measurement:
        """The measurement that this configuration would have given."""
        plain_one = _with(wanted, **DESIGN)
        plain = self.measured[plain_one]
        optimizer, workers = wanted.values["optimizer"], wanted.values["workers"]
        update, factor, wait = self.update_s(optimizer), self.pooled_factor(plain_one), 1.0
        if workers:
            slower, wait = self.fed(wanted)
            factor *= slower
        steps = []
        for step in (_slower(step, factor) for step in plain.steps):
            more = update - step.optimizer_s
            steps.append(
                replace(
                    step,
                    seconds=step.seconds + more,
                    data_wait_s=wait * step.data_wait_s,
                    last_s=step.last_s + more,
                    optimizer_s=update,
                )
            )
        peak = (plain.peak_device_bytes or 0) + self.more_bytes(optimizer)
        return replace(plain, steps=tuple(steps), peak_device_bytes=peak, observed_warnings=())

    @cache  # noqa: B019
    def pooled_factor(self, plain: Configuration) -> float:
        """Micro-steps of all measurements that compute the same, with any optimizer, over those of this one."""
        alike = [one for one in self.measured if _with(one, **DESIGN) == plain and not one.values["workers"]]
        several = [_micro_steps_s(self.measured[one]) for one in alike]
        return geometric_mean(several) / _micro_steps_s(self.measured[plain])

    @cache  # noqa: B019  (as many designs as tables)
    def update_s(self, optimizer: Value) -> float:
        """Seconds of this optimizer's step."""
        several = [item for one, item in self.measured.items() if one.values["optimizer"] == optimizer]
        return geometric_mean(item.optimizer_step_time_s or 1e-9 for item in several)

    @cache  # noqa: B019
    def more_bytes(self, optimizer: Value) -> int:
        """By how much its peak is higher than with DESIGN's."""
        of_it = {one: item for one, item in self.measured.items() if one.values["optimizer"] == optimizer}
        pairs = [
            (item, self.measured[_with(one, **DESIGN)]) for one, item in of_it.items() if not one.values["workers"]
        ]
        return int(median((item.peak_bytes or 0) - (plain.peak_bytes or 0) for item, plain in pairs))

    def fed(self, wanted: Configuration) -> tuple[float, float]:
        """Factors of the time of a micro-step and of its wait with these workers."""
        values = wanted.values
        fed = [one for one in self.measured if one.values["workers"] == values["workers"]]
        same = [one for one in fed if one.values["precision"] == values["precision"]]
        fed = sorted(same if len(same) > 2 else fed, key=lambda one: one.micro_batch_size)
        pairs = [(self.measured[one], self.measured[_with(one, **DESIGN)]) for one in fed]
        sizes = [math.log2(one.micro_batch_size) for one in fed]
        # They save no more than the wait for batches.
        factors = [
            math.log(max(_micro_steps_s(item) / _micro_steps_s(plain), 1 - (plain.data_wait_share or 0.0)))
            for item, plain in pairs
        ]
        waits = [(item.data_wait_s or 0.0) / (plain.data_wait_s or 1e-9) for item, plain in pairs]
        size = math.log2(wanted.micro_batch_size)
        return math.exp(float(np.interp(size, sizes, factors))), min(1.0, float(np.interp(size, sizes, waits)))


def _micro_steps_s(measurement: Measurement) -> float:
    return (measurement.step_time_s or 0.0) - (measurement.optimizer_step_time_s or 0.0)


def _with(configuration: Configuration, **values: Value) -> Configuration:
    return replace(configuration, settings=tuple({**dict(configuration.settings), **values}.items()))


@cache
def read_table(name: str) -> Table:
    """The recorded table. Raises FileNotFoundError where it was never recorded."""
    head, *lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    known = json.loads((FOLDER / f"{name}.known.json").read_text(encoding="utf-8"))
    design = Design({row.configuration: row.measurement for row in map(Row.read, lines)})
    estimates = {Configuration.from_dict(item["configuration"]): item["bytes"] for item in known["estimates"]}
    measured = {configuration: design.measurement(configuration) for configuration in estimates}
    baseline = Configuration.from_dict(json.loads(head)["baseline"])
    return Table(name, baseline, measured, estimates, known["rates"], known["arithmetic"])


def recorded(names: Sequence[str] = NAMES) -> list[str]:
    """Those of these tables that were recorded."""
    return [name for name in names if (FOLDER / f"{name}.jsonl").exists()]
