"""The policy of a search, simulated on recorded tables: table, noise and drift; an observation list in, a choice out.

python benchmarks/policy.py FILE [--code policy today …] [--tables …] [--noises …] [--drifts …] [--seeds FROM TO]: searches into
FILE, one after the other; what is in FILE is not searched again.
python benchmarks/policy.py --report FILE …: a line for each code, noise and drift.

`policy` is autotune.sampler.policy.choose alone: no folders, no Optuna. `today` is the real loop. Both are answered by the same
machine: a measurement is the configuration's pooled speed, times what two processes differ by, times the machine's speed now.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from unittest import mock

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import replay  # noqa: E402
from fit_prior import read_priors  # noqa: E402
from replay import N_TRIALS, knowledge_of, markdown, searched  # noqa: E402
from tables import ALIKE, BUDGETS, RECORDED_NOISE, Table, quieter, read_table, recorded  # noqa: E402

from autotune.core import Configuration, Interval, Measurement, Outcome, Trial  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.sampler.cost_model import CostModel  # noqa: E402
from autotune.sampler.observation import observed  # noqa: E402
from autotune.sampler.parameters import all_values  # noqa: E402
from autotune.sampler.physics import WarmStart  # noqa: E402
from autotune.sampler.policy import RISKS, Choice, Why, choose  # noqa: E402
from autotune.sampler.prior import Prior  # noqa: E402
from autotune.space.dominance import implied_by  # noqa: E402
from autotune.study.objective import best_trial, speed_up  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402

MOST_JOBS = 80
"""Measurements after which a simulated search is cut: none should need so many."""

DRIFT_JOBS = 10
"""Time constant of the machine's drift, in median probes of the table."""


@dataclass(frozen=True)
class Case:
    code: str
    table: str
    share: float
    seed: int
    noise: float
    drift: float = 0.0
    limit_probes: float = 0.0  # time limit in median probes of the table; 0: none
    within: float = 1.0  # factor of what the steps within a measurement show of the noise


@dataclass(frozen=True)
class Found:
    """What a search came to. low, high: the interval of the claim; truth: of it by the table; None: nothing was claimed."""

    code: str
    table: str
    share: float
    seed: int
    noise: float
    drift: float
    limit_probes: float
    within: float
    regret: float
    jobs: int
    new: int
    out_of_memory: int
    open_share: float
    bound: float | None
    end: str
    answer: str
    claim: float | None = None
    low: float | None = None
    high: float | None = None
    truth: float | None = None
    probed_regret: float = 0.0
    changes: int = 0
    seconds: float = 0.0
    decided_s: float = 0.0
    jobs_by: dict[str, int] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        return Case(
            self.code, self.table, self.share, self.seed, self.noise, self.drift, self.limit_probes, self.within
        )


class Machine:
    """Measures configurations of a table, one after the other, on a clock."""

    def __init__(self, table: Table, budget: int, case: Case) -> None:
        self.table, self.budget, self.case = table, budget, case
        self.rng = random.Random(f"{case.seed} {case.table} {case.share} {case.noise} {case.drift}")
        self.now = 0.0
        self.drifted = self.rng.gauss(0.0, 1.0)
        self.measured: list[tuple[Configuration, Measurement, float]] = []
        self.constant_s = DRIFT_JOBS * median(known[0].probe_seconds for known in table.measured.values())

    def __call__(self, configuration: Configuration, options: ProbeOptions | None = None) -> Measurement:
        measurement = self._measure(configuration)
        self.measured.append((configuration, measurement, self.now))
        self.now += measurement.probe_seconds
        kept = math.exp(-measurement.probe_seconds / self.constant_s)
        self.drifted = kept * self.drifted + math.sqrt(1 - kept**2) * self.rng.gauss(0.0, 1.0)
        return measurement

    def _measure(self, configuration: Configuration) -> Measurement:
        first, peak = self.table.measured[configuration][0], self.table.peaks[configuration]
        if peak > self.budget:
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
        error = self.rng.gauss(0.0, self.case.noise) + self.case.drift * self.drifted
        speed = self.table.speeds[configuration] * math.exp(error)
        steps = quieter(first, speed, self.case.within * self.case.noise / RECORDED_NOISE)
        return replace(first, steps=steps, allowed_bytes=self.budget, observed_warnings=())


def by_policy(
    table: Table, budget: int, knowledge: WarmStart, case: Case, trace: bool = False
) -> tuple[Machine, Choice, list[Choice], float]:
    """(the machine with what was measured, the last choice, all of them, seconds of deciding)."""
    machine, space = Machine(table, budget, case), table.space
    model = CostModel(
        list(space), all_values(space), space.baseline, knowledge.prior, lambda one: float(table.estimates[one]), budget
    )
    limit_s = case.limit_probes * machine.constant_s / DRIFT_JOBS or math.inf
    machine(space.baseline)
    risks, choices, decided = RISKS, [], 0.0
    while True:
        failed = [
            Trial(number, one, measured)
            for number, (one, measured, _) in enumerate(machine.measured)
            if measured.outcome is not Outcome.COMPLETED
        ]
        seen = [replace(observed(one, measured), started_s=at) for one, measured, at in machine.measured]
        probed = len({one for one, _, _ in machine.measured})
        began = time.perf_counter()
        choice = choose(
            model,
            seen,
            implied=partial(_is_implied, failed),
            at_s=machine.now,
            seconds_left=limit_s - machine.now,
            risks=risks,
            probes_left=N_TRIALS - probed,
            seed=case.seed,
        )
        decided += time.perf_counter() - began
        choices.append(choice)
        if trace:
            told = f"{choice.gain:.2%} {choice.seconds:.1f} s, fits {choice.fits:.2f}, untried {choice.max_gain:.1%}"
            print(len(seen), choice.why or choice.end, choice.configuration, told, "|", choice.winner, choice.claim)
        if choice.configuration is None or len(seen) >= MOST_JOBS:
            return machine, choice, choices, decided
        risks -= choice.risky
        machine(choice.configuration)


def _is_implied(failed: Sequence[Trial], one: Configuration) -> bool:
    return implied_by(one, failed) is not None


def found(case: Case) -> Found:
    table = _table(case.table)
    budget = table.budget(case.share)
    knowledge = knowledge_of(table, budget, _priors()[case.table.removesuffix(ALIKE)])
    base, decided = table.space.baseline, 0.0
    interval: Interval | None = None
    bound: float | None
    jobs_by: dict[str, int] = {}
    if case.code == "policy":
        machine, last, choices, decided = by_policy(table, budget, knowledge, case)
        fits = table.peaks[base] <= budget
        proven = last.claim is not None and last.claim.low > 1
        answer = last.winner if proven or not fits else base
        interval, bound, end = last.claim, last.max_gain_if_fits, str(last.end)
        if last.winner == base:
            interval = None
        for why in Why:
            jobs_by[str(why)] = sum(choice.why is why for choice in choices)
    else:
        machine = Machine(table, budget, case)
        plan = Plan(N_TRIALS, "samples_per_second", budget, seed=case.seed)
        began = time.perf_counter()
        trials, end, bound = _today(table, plan, knowledge, machine)
        decided = time.perf_counter() - began
        best = best_trial(trials, plan.objective)
        answer = best.configuration if best else None
        if best is not None and best.number and trials[0].feasible:
            interval = speed_up(best, trials[0], plan.objective)
    judged = [item for item in table.measured if table.peaks[item] <= budget]
    optimum = max(table.speeds[item] for item in judged)
    tried = {one for one, _, _ in machine.measured}
    reached = table.speeds[answer] if answer else 0.0
    claimed = (last.winner if case.code == "policy" else answer) or base
    values = base.values
    return Found(
        **asdict(case),
        regret=max(0.0, 1 - reached / optimum),
        jobs=len(machine.measured),
        new=len(tried),
        out_of_memory=sum(m.outcome is Outcome.OUT_OF_MEMORY for one, m, _ in machine.measured if one != base),
        open_share=max((table.speeds[item] for item in judged if item not in tried), default=0.0) / reached - 1
        if reached
        else math.inf,
        bound=None if bound is None or math.isinf(bound) else bound,
        end=end,
        answer=str(answer),
        claim=interval and float(interval),
        low=interval and interval.low,
        high=interval and (interval.high if math.isfinite(interval.high) else 1e9),
        truth=interval and table.speeds[claimed] / table.speeds[base],
        probed_regret=1
        - max((table.speeds[one] for one in tried if table.peaks[one] <= budget), default=0.0) / optimum,
        changes=sum(values[name] != value for name, value in answer.values.items()) if answer else 0,
        seconds=machine.now,
        decided_s=decided,
        jobs_by=jobs_by,
    )


def _today(table: Table, plan: Plan, knowledge: WarmStart, machine: Machine) -> tuple[list[Trial], str, float | None]:
    with mock.patch.object(replay, "TableProbe", return_value=machine):
        trials, reason, gain = searched(table, plan, knowledge, 0.0)
    return trials, reason, replay.bound_of(reason, gain)


@cache
def _table(name: str) -> Table:
    return read_table(name)


@cache
def _priors() -> dict[str, Prior]:
    return read_priors()


HEAD = [
    "searches",
    "within 1 %",
    "mean regret",
    "worst",
    "probed",
    "jobs",
    "95 %",
    "new",
    "OOM",
    "bound true",
    "claims",
    "covered",
    "proven",
    "changes",
    "s",
]


def summary(several: Sequence[Found]) -> list[str]:
    claims = [
        (item.low, item.truth, item.high) for item in several if item.low and item.truth is not None and item.high
    ]
    bounded = [item for item in several if item.bound is not None]
    return [
        f"{len(several)}",
        f"{fmean(item.regret <= 0.01 for item in several):.1%}",
        f"{fmean(item.regret for item in several):.2%}",
        f"{max(item.regret for item in several):.1%}",
        f"{fmean(item.probed_regret for item in several):.2%}",
        f"{median(item.jobs for item in several):.0f}",
        f"{np.quantile([item.jobs for item in several], 0.95):.0f}",
        f"{median(item.new for item in several):.0f}",
        f"{fmean(item.out_of_memory for item in several):.2f}",
        f"{fmean(item.open_share <= (item.bound or 0.0) for item in bounded):.1%}" if bounded else "–",
        f"{len(claims)}",
        f"{fmean(low <= truth <= high for low, truth, high in claims):.1%}" if claims else "–",
        f"{fmean(low > 1 for low, _, _ in claims):.0%}" if claims else "–",
        f"{fmean(item.changes for item in several):.1f}",
        f"{fmean(item.decided_s for item in several):.2f}",
    ]


def read(path: Path) -> list[Found]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Found(**json.loads(line)) for line in lines]


def report(several: Sequence[Found], *by: str) -> list[str]:
    groups: dict[tuple[object, ...], list[Found]] = {}
    for item in several:
        groups.setdefault(tuple(getattr(item, name) for name in by), []).append(item)
    lines = [[*map(str, key), *summary(groups[key])] for key in sorted(groups, key=str)]
    return markdown([*by, *HEAD], lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--report", nargs="*")
    parser.add_argument("--code", nargs="+", default=["policy"])
    parser.add_argument("--tables", nargs="+", default=recorded())
    parser.add_argument("--shares", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--noises", nargs="+", type=float, default=[0.005])
    parser.add_argument("--drifts", nargs="+", type=float, default=[0.0])
    parser.add_argument("--limits", nargs="+", type=float, default=[0.0])
    parser.add_argument("--within", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", nargs=2, type=int, default=[0, 1])
    parser.add_argument("--most-seconds", type=float, default=285.0)
    args = parser.parse_args()
    if args.report is None:
        path, began = args.files[0], time.monotonic()
        known = {item.case for item in read(path)}
        with path.open("a", encoding="utf-8") as file:
            for seed, code, noise, drift, limit, within, name, share in product(
                range(*args.seeds),
                args.code,
                args.noises,
                args.drifts,
                args.limits,
                args.within,
                args.tables,
                args.shares,
            ):
                case = Case(code, name, share, seed, noise, drift, limit, within)
                if case not in known:
                    if time.monotonic() - began > args.most_seconds:
                        print("cut: run again for the rest")
                        return
                    file.write(json.dumps(asdict(found(case))) + "\n")
                    file.flush()
    by = args.report or ["noise", "drift", "limit_probes", "within", "code"]
    print("\n".join(report([item for path in args.files for item in read(path)], *by)))


if __name__ == "__main__":
    main()
