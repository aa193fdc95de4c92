"""Seconds of whole searches on an assumed H100, part by part, before and after what makes them shorter.

python benchmarks/search_seconds.py [--seeds N]: writes reports/search_seconds.md; takes minutes, needs neither a GPU nor an idle
machine.

Loop, policy, rounds, reference and LiveProbe are the project's own, and so is the stopwatch that decides when a probe ends: it
runs on the simulated card of tests/stream.py. Simulated are the host (which starts children and brings back their answers), the
card and the clock. What a child's training takes is computed from the constants below, so that these seconds are no
measurements: they show which part of a search is how long, and what a change of the search is worth.
"""

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

from machine import write_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune.core import Configuration, Measurement, Outcome, TuningRequest, Workload, write_json  # noqa: E402
from autotune.core.failures import Failure  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.sanity import SanityCheck  # noqa: E402
from autotune.core.slot import Slot, SlotKind  # noqa: E402
from autotune.core.time_limit import TimeLimit  # noqa: E402
from autotune.executors.pool import Pool  # noqa: E402
from autotune.probe import ExitInfo, ProbeOptions  # noqa: E402
from autotune.probe.order import CONFIRMATION, Order, Timing, answer_name  # noqa: E402
from autotune.probe.process.launcher import write_order  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.sampler.physics import expected_work  # noqa: E402
from autotune.sampler.prior import CUDA_KERNEL_S, Prior, roofline  # noqa: E402
from autotune.sampler.warm_start import WarmStart  # noqa: E402
from autotune.space.build import build_space  # noqa: E402
from autotune.space.search_space import SearchSpace  # noqa: E402
from autotune.space.settings.precision import ALIKE, FROZEN  # noqa: E402
from autotune.space.utilization import Arithmetic  # noqa: E402
from autotune.study.finish import finish  # noqa: E402
from autotune.study.job import Run  # noqa: E402
from autotune.study.loop import open_study, search  # noqa: E402
from autotune.study.measure import live_probe, measure  # noqa: E402
from autotune.study.plan import plan_of  # noqa: E402
from autotune.study.reference import loss_steps, next_reference  # noqa: E402
from autotune.study.schedule import _whole_speed  # noqa: E402
from autotune.study.study import Study  # noqa: E402
from autotune.study.warm_start import expected_effects  # noqa: E402
from tests.makers import gpu  # noqa: E402
from tests.stream import Durations, Machine, measurement_of, on_gpu, watched  # noqa: E402

# The card --------------------------------------------------------------------------------------------------------

TFLOPS = {"bf16": 400.0, "fp16": 400.0, "tf32": 180.0, "fp32": 45.0}
"""Reached by a model's products: of an H100's 989, 495 and 67 TFLOP/s (data sheet, dense) what training leaves of them."""

BYTES_S = 2.2e12
"""Memory traffic reached of an H100 SXM's 3.35 TB/s (data sheet)."""

LINK_BYTES_S = 250e9
"""Traffic reached between cards, of NVLink 4's 450 GB/s in each direction (data sheet)."""

LAUNCH_S = 5e-6
"""The host's seconds to start a kernel: of the order that profiles of eager training show."""

HALF_TOKENS = 1500
"""Tokens of a micro-step at which products reach half of their rate: an assumption."""

BETWEEN, WITHIN = 0.003, 0.004
"""Standard deviations of the logarithms of two processes' speeds, and of two steps'."""


def cold(seconds: float) -> float:
    """Speed of a card that idled while a child started, as a share of the one it settles at: its power is held after a second."""
    return 1 + 0.12 * math.exp(-seconds / 0.5)


def falling(seconds: float) -> float:
    """A card that heats up for long: its clock falls by a seventh within ten seconds, the worst of benchmarks/stream.py."""
    return max(1700, 1980 - 28 * seconds) / 1700


# The models ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A search. weights: of linear layers. All seconds are assumptions.

    setup_s: the host's start, the device, model and data. start_s: a probe's start and end, the model, the context.
    first_s: what a first step takes beyond another. traces_s: of all traces. padding_s: of measuring a padded vocabulary's
    worth, as searches did.
    """

    name: str
    task: str
    layers: int
    hidden: int
    vocabulary: int
    weights: float
    tokens: int
    global_batch_size: int
    space: str
    arguments: Mapping[str, Any]
    setup_s: float
    start_s: float
    first_s: float
    traces_s: float
    padding_s: float = 0.0
    fix: Mapping[str, Any] = field(default_factory=dict)
    cards: int = 1

    @property
    def parameters(self) -> float:
        return self.weights + self.vocabulary * self.hidden

    def adapter(self, of: Configuration) -> float:
        """Weights of its adapter; 0 if all weights learn."""
        rank = of.values.get("lora", "none")
        linears = {"all_linear": 7 * 1.8, "attention": 4.0}[str(of.values.get("lora_targets", "attention"))]
        return 0.0 if rank == "none" else 2.0 * float(rank) * self.layers * self.hidden * linears


RATES_S = 8.0
"""Of measuring the device's rates: a child's start, two seconds of warming, each format and optimizer."""

CASES = (
    Case("BERT-large", "masked-lm", 24, 1024, 30522, 302e6, 512, 64, "default", {}, 28, 4.5, 1.0, 17, 5),
    Case(
        "1B full", "causal-lm", 16, 2048, 128256, 0.97e9, 2048, 16, "default",
        {"bf16": True, "gradient_checkpointing": True, "per_device_train_batch_size": 1}, 30, 5.5, 1.5, 20,
    ),
    Case(
        "8B LoRA", "causal-lm", 32, 4096, 128256, 7.0e9, 2048, 64, "lora",
        {"bf16": True, "gradient_checkpointing": True, "per_device_train_batch_size": 1},
        30, 8.0, 2.0, 22, fix={"lora": 16, "lora_targets": "all_linear"},
    ),
    Case(
        "8B FSDP, 8 cards", "causal-lm", 32, 4096, 128256, 7.0e9, 2048, 64, "multi-gpu",
        {"bf16": True, "fsdp": True, "fsdp_config": {"version": 2}},
        30, 25.0, 3.0, 22, fix={"data_parallel_size": 8}, cards=8,
    ),
)  # fmt: skip
"""With FSDP each rank builds the model on the host."""


@dataclass(frozen=True)
class Work:
    """What a configuration's training takes on the card: seconds of a micro-step, of the optimizer, of launching; peak bytes."""

    micro_s: float
    optimizer_s: float
    launch_s: float
    exchange_s: float
    peak_bytes: float

    @classmethod
    def of(cls, case: Case, of: Configuration) -> "Work":
        values, ranks = of.values, of.data_parallel_size
        precision = str(values["precision"])
        wide = 4 if precision in ("fp32", "tf32") else 2
        full, tokens = values["checkpointing"] == "full", of.micro_batch_size * case.tokens
        adapter = case.adapter(of)
        learning = adapter or case.parameters
        forward = 2 * tokens * (case.parameters + 2 * case.layers * case.tokens * case.hidden)
        flops = forward * ((2.0 if adapter else 3.0) + full)
        rate = TFLOPS[ALIKE.get(precision, precision)] * 1e12 * tokens / (tokens + HALF_TOKENS)
        traffic = tokens * (case.layers * case.hidden * 45 * wide * (1 + full / 3) + case.vocabulary * 30)
        gathered = 2 * case.parameters * wide * {"full_shard": 2, "shard_grad_op": 1}.get(str(values.get("fsdp")), 0)
        compute = flops / rate + traffic / BYTES_S
        exchanged = gathered / LINK_BYTES_S
        kept, slower = OPTIMIZERS[str(values["optimizer"])]
        shards = ranks if values.get("fsdp", "none") != "none" else 1
        weights = case.parameters * (2 if precision == FROZEN else 4)
        activations = tokens * case.layers * case.hidden * (2 if full else 17) * wide
        logits = tokens * case.vocabulary * 10
        held = weights + (0 if adapter or wide == 4 else 2 * case.parameters) + learning * (4 + kept)
        return cls(
            max(compute, exchanged) + 0.15 * min(compute, exchanged),
            learning / shards * 36 * slower / BYTES_S + 0.001,
            case.layers * 60 * LAUNCH_S * (1 + full / 3),
            0.0 if ranks == 1 or shards > 1 else 2 * 4 * learning / LINK_BYTES_S,
            held / shards + activations + logits,
        )


OPTIMIZERS = {
    "adamw_torch": (8.0, 1.3),
    "adamw_torch_fused": (8.0, 1.0),
    "adamw_bnb_8bit": (2.0, 0.9),
    "adafactor": (0.1, 2.5),
}
"""Optimizer -> (bytes of its state for each weight, seconds as a multiple of fused AdamW's)."""


# The search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Behaviour:
    """What makes searches shorter. All off: as they were."""

    worthwhile: bool = (
        True  # a trial is measured again if that is worth its seconds, not in a race of several in three rounds
    )
    windows: bool = True  # a GPU's untimed steps end by windows that agree, and long steps need fewer
    composed: bool = True  # long rounds after a trial's first run few micro-steps
    losses_alone: bool = True  # the reference trains for its losses alone and once, in TF32 if fp32 takes long
    traces_beside: bool = True  # traces are made while the baseline is measured
    no_padding: bool = True  # a padded vocabulary's worth is not measured
    short_check: bool = True  # the last check runs few micro-steps


BEFORE = Behaviour(*[False] * 7)
NOW = Behaviour()

FORMER = (
    Timing(window_s=1.5, untimed_seconds_most=1.5, timed_seconds_least=1.0),
    replace(CONFIRMATION, window_s=5.0, untimed_seconds_most=5.0, timed_seconds_least=3.0),
)
"""Fixed seconds: windows that never agree before."""

RACE = (3, 2, 2)
"""Rounds of the fastest, the second and the third of a race, beside the baseline's three: ten in all, the median of searches
replayed with that rule and a noise of half a per cent (reports/replay.md)."""

REFERENCE_S = 300.0
"""Longest training of a race's reference: what its deadline was if no baseline had run. One that runs longer is not repeated."""


class Host:
    """Carries out orders by computing their seconds. parts: what they took, by part. now: the clock."""

    uses_cache = True

    def __init__(self, case: Case, behaviour: Behaviour, speed: Callable[[float], float], seed: int) -> None:
        self.case, self.behaviour, self.speed, self.seed = case, behaviour, speed, seed
        self.time_limit = TimeLimit()
        self.parts: Counter[str] = Counter()
        self.orders: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return sum(self.parts.values())

    def run(self, order: Order) -> ExitInfo:
        write_order(order)
        before = Counter(self.parts)
        if order.kind == "sanity_check":
            answer: Mapping[str, Any] = {"value": self._sanity_checked(order)}
        else:
            answer = self._probed(order).to_dict()
        seconds = self.now - sum(before.values())
        if seconds > order.deadline_s:
            share = order.deadline_s / seconds
            self.parts = Counter({part: before[part] + share * (s - before[part]) for part, s in self.parts.items()})
            return ExitInfo("timed out", order.deadline_s, [None] * order.ranks)
        for rank in range(order.ranks):
            write_json(Path(order.folder) / answer_name(rank), answer)
        return ExitInfo("exited", seconds, [0] * order.ranks)

    def _sanity_checked(self, order: Order) -> dict[str, Any]:
        configuration = order.configuration
        assert configuration is not None
        work = Work.of(self.case, configuration)
        steps_s = 2 * (order.accumulation_steps_run * work.micro_s + work.optimizer_s) + self.case.first_s
        self.parts["check"] += self.case.start_s + steps_s + work.micro_s * 8 / configuration.micro_batch_size / 3
        return SanityCheck(eval_batch_size=8).to_dict()

    def _probed(self, order: Order) -> Measurement:
        of = order.configuration
        assert of is not None
        assert order.allowed_bytes is not None
        name = (
            "reference" if Path(order.folder).parent.name == "reference" else "round" if order.confirmation else "probe"
        )
        work, values = Work.of(self.case, of), of.values
        self.orders[name] += 1
        self._spend(name, "start", self.case.start_s)
        facts = {"asked": values, "settings": values, "allowed_bytes": order.allowed_bytes}
        if work.peak_bytes > order.allowed_bytes:
            self._spend(name, "first step", 1.0)
            held = {"held_bytes": order.allowed_bytes, "refused_bytes": int(work.peak_bytes - order.allowed_bytes)}
            steps = {
                "accumulation_steps": of.gradient_accumulation_steps,
                "accumulation_steps_run": order.accumulation_steps_run,
            }
            return Measurement(Outcome.OUT_OF_MEMORY, reason="simulated", where="forward", **facts, **held, **steps)
        chance = random.Random(f"{self.seed} {self.case.name} {of} {name} {order.confirmation}")
        slower = math.exp(chance.gauss(0.0, BETWEEN))

        @cache
        def durations(step: int) -> Durations:
            noisy = slower * math.exp(chance.gauss(0.0, WITHIN))
            others = {"launch": work.launch_s, "optimizer": noisy * work.optimizer_s, "exchange": work.exchange_s}
            return on_gpu(noisy * work.micro_s, rest=0.0004 if step else self.case.first_s, **others)

        plain = replace(order, configuration=Configuration(of.micro_batch_size, of.gradient_accumulation_steps))
        machine = Machine(speed=self.speed)
        watch, trainer = watched(plain, machine=machine, durations=durations)
        first, *untimed = watch.pace.untimed
        timed_s = sum(step.seconds for step in watch.pace.steps)
        self._spend(name, "first step", first)
        self._spend(name, "untimed", sum(untimed))
        self._spend(name, "timed", max(timed_s, machine.ranks[0].host - first - sum(untimed)))
        whole = order.accumulation_steps_run == of.gradient_accumulation_steps
        ranks = of.data_parallel_size
        return replace(
            measurement_of(watch),
            data_parallel_size=ranks,
            untimed_steps=watch.untimed_steps,
            ended_early=watch.pace.ended_early,
            losses=tuple(9 - 0.05 * step for step in range(trainer.step)) if order.confirmation and whole else (),
            peak_device_bytes=int(work.peak_bytes),
            **facts,
        )

    def _spend(self, name: str, part: str, seconds: float) -> None:
        self.parts[f"{name}: {part}" if name != "reference" else name] += seconds


@dataclass
class FormerProbe(LiveProbe):
    """A LiveProbe whose reference is a whole round, and whose last check runs all micro-steps, unless they are short."""

    behaviour: Behaviour = NOW

    def timing(self, configuration: Configuration, options: ProbeOptions, accumulation_steps_run: int) -> Timing:
        options = options if self.behaviour.losses_alone else replace(options, losses=0)
        return super().timing(configuration, options, accumulation_steps_run)

    def train(
        self,
        kind: str,
        configuration: Configuration,
        folder: Path,
        deadline_s: float,
        request: Mapping[str, Any],
        **more: Any,
    ) -> tuple[Any, Failure | None]:
        if not self.behaviour.short_check:
            more["accumulation_steps_run"] = configuration.gradient_accumulation_steps
        return super().train(kind, configuration, folder, deadline_s, request, **more)


@dataclass(frozen=True)
class Seconds:
    """What a search took, by part; its measurements by kind; share of speed that its answer lacks to the best of the space."""

    parts: Mapping[str, float]
    orders: Mapping[str, int]
    regret: float

    @property
    def all(self) -> float:
        return sum(self.parts.values())


def searched(case: Case, behaviour: Behaviour, seed: int = 0, speed: Callable[[float], float] = cold) -> Seconds:
    """A whole search of this case."""
    request, environment, workload, space = asked(case, seed)
    host = Host(case, behaviour, speed, seed)
    allowed = int(environment.free_memory_bytes * (1 - request.headroom))
    rates = {name: rate * 1e12 for name, rate in TFLOPS.items()}
    traced_at = math.inf
    with TemporaryDirectory() as place, _clock(host, behaviour):
        folder = Path(place)
        plan = plan_of(request, environment, host.time_limit, allowed)
        plan = plan if behaviour.worthwhile else replace(plan, confirmation_rounds=0)
        study = open_study(folder, space, plan)
        of = live_probe(request, host, environment, workload, allowed, folder)  # type: ignore[arg-type]
        former = None if behaviour.windows else FORMER
        probe = FormerProbe(**{**vars(of), "timings": former}, behaviour=behaviour)

        @cache
        def warm_up() -> None:
            host.parts["rates"] += RATES_S
            host.parts["traces"] += max(0.0, traced_at - host.now) if behaviour.traces_beside else case.traces_s
            host.parts["padding"] += 0.0 if behaviour.no_padding else case.padding_s
            study.start_from(knowledge(case, space, environment, workload, allowed, rates))

        host.parts["host, device, data"] += case.setup_s
        traced_at = host.now + case.traces_s
        search(study, Pool({"": probe}), warm_up=warm_up)
        if not behaviour.worthwhile:
            race(study, probe)
        finish(study, probe.train, lambda progress: None)
    speeds = {one: samples_per_second(case, one) for one in space if Work.of(case, one).peak_bytes <= allowed}
    best = study.standing.answer
    regret = 1 - speeds[best.configuration] / max(speeds.values()) if best else 1.0
    return Seconds({name: seconds for name, seconds in host.parts.items() if seconds}, host.orders, regret)


def race(study: Study, probe: "FormerProbe") -> None:
    """Measure the fastest trials and the baseline again in rounds, and in each the losses' reference until it fails."""
    able = [trial for trial in study.trials if trial.feasible and not trial.measurement.ended_early]
    able.sort(key=lambda trial: -(trial.samples_per_second or 0.0))
    rounds = {trial.number: count for trial, count in zip(able, RACE, strict=False)}
    rounds |= {trial.number: 3 for trial in study.trials[:1] if trial.feasible}
    losses = study.ledger.references

    for number in range(1, 4):
        for trial in list(study.trials):
            if rounds.get(trial.number, 0) >= number:
                job = Run(Slot(trial.number, number), trial.configuration, whole_speed=_whole_speed(trial, number, ""))
                measurement = measure(study.folder, study.plan, study.trials, probe, job)
                study.ledger.record(job.slot, job.configuration, measurement)
        reference = next_reference(study.plan, study.standing, losses, study.products)
        is_wanted = number == 1 or not probe.behaviour.losses_alone
        if reference is not None and is_wanted and all(training.feasible for training in losses.values()):
            slot, steps = Slot(0, number, SlotKind.REFERENCE), loss_steps(study.trials, number)
            measurement = probe(reference, ProbeOptions(slot, REFERENCE_S, losses=steps))
            study.ledger.record(slot, reference, measurement)


def samples_per_second(case: Case, of: Configuration) -> float:
    work = Work.of(case, of)
    micro_s = max(work.micro_s, work.launch_s)
    return of.global_batch_size / (of.gradient_accumulation_steps * micro_s + work.optimizer_s + work.exchange_s)


def asked(case: Case, seed: int) -> tuple[TuningRequest, Any, Workload, SearchSpace]:
    """Request, environment, workload and space of a case."""
    request = tuning_request(
        case.name, case.global_batch_size, space=case.space, fix=case.fix, seed=seed, task=case.task, device="cuda"
    )
    request = replace(request, training_args=case.arguments)
    cards = tuple(f"GPU-{number}" for number in range(case.cards))
    versions = {"torch": "2.13.0", "transformers": "5.23.0", "peft": "0.18.0"}
    environment = gpu(
        device_name="NVIDIA H100 80GB HBM3", device_count=case.cards, device_uuids=cards, versions=versions
    )
    workload = Workload(
        name=case.name,
        task=case.task,
        sequence_length=case.tokens,
        parameters=int(case.parameters),
        parameter_bytes=int(4 * case.parameters),
        gradient_bytes=int(4 * case.parameters),
        supports_checkpointing=True,
        adapter_targets=dict.fromkeys(("all_linear", "attention")),
        attentions={"sdpa": None},
        attention="sdpa",
    )
    return request, environment, workload, build_space(request, environment, workload, case.arguments)


def knowledge(
    case: Case, space: SearchSpace, environment: Any, workload: Workload, allowed: int, rates: Mapping[str, float]
) -> WarmStart:
    """What estimates tell a search of this case: peaks 3 % too low, and the device's rates."""

    def peak(of: Configuration) -> float:
        return 0.97 * Work.of(case, of).peak_bytes

    flops = 6.0 * case.tokens * case.parameters
    half_speed = roofline(flops, case.layers * 60.0, rates["fp32"], CUDA_KERNEL_S)
    work, effects = expected_work(space.values, rates), expected_effects(space, environment, workload)
    prior = replace(Prior(), work=work, effects=effects, half_speed=half_speed)
    return WarmStart(allowed, peak, prior, arithmetic=Arithmetic({}, rates))


@contextmanager
def _clock(host: Host, behaviour: Behaviour) -> Iterator[None]:
    """Within, the search reads the host's clock, and behaves so."""
    clock = SimpleNamespace(time=lambda: 1e9 + host.now, monotonic=lambda: host.now, sleep=lambda seconds: None)
    with ExitStack() as stack:
        for module in ("probe.runner", "study.measure", "study.loop", "core.time_limit"):
            stack.enter_context(mock.patch(f"autotune.{module}.time", clock))
        if not behaviour.windows:
            stack.enter_context(mock.patch("autotune.study.pacing.timings", return_value=FORMER))
        if not behaviour.composed:
            for module in ("schedule", "pacing"):
                stack.enter_context(mock.patch(f"autotune.study.{module}.can_be_composed", return_value=False))
        if not behaviour.losses_alone:
            stack.enter_context(mock.patch("autotune.study.reference.is_once", return_value=False))
            stack.enter_context(mock.patch.object(Study, "products", {}))
        yield


# The report ------------------------------------------------------------------------------------------------------

PARTS = (
    "host, device, data", "rates", "traces", "padding",
    *(f"{name}: {part}" for name in ("probe", "round") for part in ("start", "first step", "untimed", "timed")),
    "reference", "check",
)  # fmt: skip

IMPROVEMENTS = {
    "worthwhile": "measured again only if that is worth it",
    "windows": "untimed steps by windows",
    "composed": "long rounds composed",
    "losses_alone": "reference: losses alone, once",
    "traces_beside": "traces beside the baseline",
    "no_padding": "no padding's worth",
    "short_check": "few micro-steps in the check",
}


def mean(case: Case, behaviour: Behaviour, seeds: int, speed: Callable[[float], float] = cold) -> Seconds:
    """The mean of searches that differ by chance."""
    each = [searched(case, behaviour, seed, speed) for seed in range(seeds)]

    def of(name: str, which: str) -> float:
        return fmean(getattr(one, which).get(name, 0.0) for one in each)

    names = {name for one in each for name in one.orders}
    orders: dict[str, Any] = {name: of(name, "orders") for name in names}
    return Seconds({part: of(part, "parts") for part in PARTS}, orders, fmean(one.regret for one in each))


def part_lines(before: Seconds, now: Seconds) -> list[str]:
    lines = ["| part | before | now |", "|---|---|---|"]
    columns = (before, now)
    for part in PARTS:
        seconds = [column.parts.get(part, 0.0) for column in columns]
        if any(seconds):
            lines.append(f"| {part} | {' | '.join(f'{each:.0f}' for each in seconds)} |")
    lines.append(f"| **all, s** | {' | '.join(f'**{column.all:.0f}**' for column in columns)} |")
    lines.append(f"| times as fast | 1 | {before.all / now.all:.2f} |")
    for text, name in (("probes", "probe"), ("rounds", "round"), ("trainings of the reference", "reference")):
        lines.append(f"| {text} | {' | '.join(f'{column.orders.get(name, 0.0):.1f}' for column in columns)} |")
    lines.append(f"| the answer lacks to the best | {' | '.join(f'{column.regret:.1%}' for column in columns)} |")
    return lines


def alone_lines(cases: list[Case], before: list[Seconds], now: list[Seconds], seeds: int) -> list[str]:
    lines = [f"| | {' | '.join(case.name for case in cases)} |", "|---|" + "---|" * len(cases)]
    lines.append(f"| before | {' | '.join(f'{one.all:.0f} s' for one in before)} |")
    for name, text in IMPROVEMENTS.items():
        with_it = [mean(case, replace(BEFORE, **{name: True}), seeds) for case in cases]
        cells = [f"{its.all - first.all:+.0f} s" for first, its in zip(before, with_it, strict=True)]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    lines.append(f"| all of them | {' | '.join(f'{one.all:.0f} s' for one in now)} |")
    return lines


def main() -> None:
    """Write reports/search_seconds.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    args = parser.parse_args()
    cases = [case for case in CASES if case.name in args.cases]
    lines = [
        "Simulated: nothing here ran on a GPU. The loop, the policy and the timing of probes are autotune's own; what the",
        "card takes is computed from constants that benchmarks/search_seconds.py states with their sources.",
        f"Means of {args.seeds} searches that differ by chance, in seconds.",
    ]
    before, now = [], []
    for case in cases:
        before.append(mean(case, BEFORE, args.seeds))
        now.append(mean(case, NOW, args.seeds))
        lines += ["", f"## {case.name}, global batch {case.global_batch_size}", "", *part_lines(before[-1], now[-1])]
    lines += ["", "## Each change", "", "Seconds that it changes alone.", ""]
    lines += alone_lines(cases, before, now, args.seeds)
    lines += [
        "",
        "## A card whose clock falls for ten seconds",
        "",
        "| | before | now |",
        "|---|---|---|",
    ]
    for case in cases:
        columns = [mean(case, behaviour, args.seeds, falling) for behaviour in (BEFORE, NOW)]
        lines.append(f"| {case.name} | {' | '.join(f'{column.all:.0f}' for column in columns)} |")
    write_table(ROOT / "reports" / "search_seconds.md", "Seconds of a search on an assumed H100", lines)


if __name__ == "__main__":
    main()
