"""Searches replayed on recorded tables: how good answers, claims and predictions are on models that chose no constant.

python benchmarks/replay.py FILE [--samplers physics …] [--tables …] [--noises …] [--drifts …] [--seeds FROM TO] [--equal]
[--devices 1 4 …] [--slow SHARE] [--minutes M]: searches into FILE, on two cores; what is in FILE is not searched again, so that a
run can be cut.
python benchmarks/replay.py --report FILE … [--by noise table …]: a line for each combination of these.

Every sampler goes through the real loop. equal: all configurations are as fast as the baseline, so that every claim is false.
devices: in virtual time; each drifts by itself, and the last of several is slower by the share of --slow.
Regret is 1 - speed of the answer / speed of the best that fits. The tables of `tables.JUDGES` chose no constant.
"""

import argparse
import contextlib
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from machine import write_table  # noqa: E402
from tables import BUDGETS, JUDGES, Table, TableProbe, quieter, read_table, recorded  # noqa: E402

from autotune.core.measurement import Outcome  # noqa: E402
from autotune.core.stop_reason import StopReason  # noqa: E402
from autotune.executors.pool import Pool, Work, carried_out  # noqa: E402
from autotune.judge import constants  # noqa: E402
from autotune.judge.observation import observed  # noqa: E402
from autotune.judge.standing import Standing  # noqa: E402
from autotune.probe import Probe  # noqa: E402
from autotune.sampler.cost_model import CostModel  # noqa: E402
from autotune.sampler.prior import CPU_MEMORY, Prior  # noqa: E402
from autotune.sampler.warm_start import WarmStart  # noqa: E402
from autotune.study.loop import open_study, search  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402
from autotune.study.study import Study  # noqa: E402

N_TRIALS = 20
OURS = "physics"
AFTER = (1, 2, 4, 6)
"""Trials after which predictions of the untried are judged."""


@dataclass(frozen=True)
class Case:
    """A search to replay.

    noise: standard deviation of the logarithm of a probe's speed; drift: of each device's. slow: share by which the last of
    several devices is slower.
    """

    table: str
    share: float
    sampler: str
    seed: int
    noise: float
    drift: float = 0.0
    equal: bool = False
    devices: int = 1
    slow: float = 0.0


@dataclass(frozen=True)
class Found:
    """What one search came to.

    trials, again: first measurements and further ones. seconds: of all over those of the trials. to_one: trials until one
    within 1 % of the optimum was made. low, high: interval of the claim, and true: by the table; None: nothing is claimed.
    changed: whether the answer is another configuration. errors: (trials before, error, standard deviation) of predictions of the
    logarithm of untried configurations' steps. wall: virtual time in probes of the baseline. left_out: number of devices.
    """

    case: Case
    regret: float
    trials: int
    again: int
    seconds: float
    to_one: int
    out_of_memory: int
    changed: bool
    low: float | None
    high: float | None
    true: float | None
    stop: str
    errors: list[list[float]] = field(default_factory=list)
    wall: float = math.nan
    left_out: int = 0


def knowledge_of(table: Table, budget: int) -> WarmStart:
    """What a search on this table starts from, as `autotune.study.warm_start.build_warm_start` has it."""
    prior = table.informs(Prior(memory=CPU_MEMORY))
    return WarmStart(budget, lambda one: float(table.estimates[one]), prior, padded=table.padded)


@contextlib.contextmanager
def study_in_memory(table: Table, plan: Plan, knowledge: WarmStart) -> Iterator[Study]:
    """A new study of the table, in a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield open_study(folder, table.space, plan, knowledge)
    finally:
        shutil.rmtree(folder)


class VirtualPool(Pool):
    """Devices in virtual time: of the jobs that run, the one whose measurements took the fewest seconds ends next.

    clock: seconds of virtual time. passing: called each time before it passes.
    """

    def __init__(self, probes: Mapping[str, TableProbe], passing: Callable[[], None] = lambda: None) -> None:
        super().__init__(probes)
        self.clock, self._tables, self._passing = 0.0, probes, passing
        self._ends: list[tuple[float, str, Any, BaseException | None]] = []
        for probe in probes.values():
            probe.clock = lambda: self.clock

    def _begin(self, device: str, work: Work, probe: Probe) -> None:
        before_s = self._tables[device].spent_s
        value, error = carried_out(work, probe)
        self._ends.append((self.clock + self._tables[device].spent_s - before_s, device, value, error))

    def _next(self) -> tuple[str, Any, BaseException | None]:
        self._passing()
        first = min(self._ends, key=lambda end: end[:2])
        self._ends.remove(first)
        self.clock, *rest = first
        return rest[0], rest[1], rest[2]


def devices_of(table: Table, case: Case, passing: Callable[[], None] = lambda: None) -> VirtualPool:
    """The devices of a search; several have noise and drift of their own."""
    budget = table.budget(case.share)
    probes = [TableProbe(table, budget, case.seed, case.noise, case.drift, case.equal)]
    if case.devices > 1:
        probes = [replace(probes[0], seed=1000 * case.seed + device) for device in range(case.devices)]
        probes[-1].table = slower(table, case.slow) if case.slow else table
    return VirtualPool({f"d{number}": probe for number, probe in enumerate(probes)}, passing)


def slower(table: Table, share: float) -> Table:
    """The table of a device that is slower by this share."""
    measured = {
        one: replace(known, steps=quieter(known, (1 - share) * table.speeds[one], 1.0))
        for one, known in table.measured.items()
    }
    return replace(table, measured=measured)


def searched(table: Table, plan: Plan, knowledge: WarmStart, probe: Probe | Pool) -> tuple[Standing, StopReason]:
    """The real loop on a table."""
    with study_in_memory(table, plan, knowledge) as study:
        stop = search(study, probe)
        return study.standing, stop


def replayed(case: Case) -> Found:
    """One search, from its baseline to its confirmed answer."""
    table = read_table(case.table)
    budget = table.budget(case.share)
    margin = constants.SAME_SPEED
    plan = Plan(N_TRIALS, "samples_per_second", budget, sampler=case.sampler, margin=margin, seed=case.seed)
    knowledge = knowledge_of(table, budget)
    pool = devices_of(table, case)
    standing, stop = searched(table, plan, knowledge, pool)
    speeds = dict.fromkeys(table.speeds, 1.0) if case.equal else table.speeds
    best, trials = standing.answer, standing.trials
    reached = speeds[best.configuration] if best else 0.0
    optimum = max(speed for one, speed in speeds.items() if table.peaks[one] <= budget)
    gain = standing.gain(best) if best is not None and standing.compared is not None else None
    is_claimed = best is not standing.compared and gain is not None
    good = (
        number
        for number, trial in enumerate(trials, 1)
        if trial.feasible and speeds[trial.configuration] >= 0.99 * optimum
    )
    own_s = sum(trial.measurement.probe_seconds for trial in trials)
    return Found(
        case,
        regret=max(0.0, 1 - reached / optimum),
        trials=len(trials),
        again=sum(len(trial.confirmations) for trial in trials),
        seconds=sum(trial.probe_seconds for trial in trials) / own_s,
        to_one=next(good, 10**6),
        out_of_memory=sum(trial.measurement.outcome is Outcome.OUT_OF_MEMORY for trial in trials[1:]),
        changed=best is not None and best is not standing.compared,
        low=gain.low if gain is not None and is_claimed else None,
        high=gain.high if gain is not None and is_claimed else None,
        true=reached / speeds[standing.compared.configuration] if standing.compared and is_claimed else None,
        stop=stop.text,
        errors=[] if case.equal or case.sampler != OURS else predictions(table, knowledge, standing, case.noise),
        wall=pool.clock / table.baseline_seconds,
        left_out=len(pool.left_out),
    )


def predictions(table: Table, knowledge: WarmStart, standing: Standing, noise: float) -> list[list[float]]:
    """[trials before, error, standard deviation] of the model's predictions of what was not tried yet and may fit."""
    model, found = CostModel(list(table.space), table.space, knowledge), []
    for count in AFTER:
        trials = standing.trials[:count]
        if len(trials) < count or not trials[0].feasible:
            continue
        costs = model.costs([observed(trial.configuration, trial.measurement) for trial in trials])
        tried = {trial.configuration for trial in trials}
        for place, one in enumerate(model.configurations):
            # Of the others the effects of settings that were never in doubt would drown what matters.
            plain = one.values["optimizer"] == "adamw_torch_fused" and one.values["workers"] == 0
            if one not in tried and plain:
                truth = math.log(one.global_batch_size / table.speeds[one])
                found.append(
                    [count, truth - float(costs.log_step[place]), math.hypot(float(costs.deviation[place]), noise)]
                )
    return found


def calibration(found: Sequence[Found]) -> list[str]:
    """How well predictions say how wrong they are, by the number of trials before."""
    lines = [
        ["after trials", "predictions", "mean error", "root mean square of z", "within 2", "mean deviation"],
        ["---"] * 6,
    ]
    for count in AFTER:
        several = [(error, deviation) for one in found for number, error, deviation in one.errors if number == count]
        if several:
            z = [error / deviation for error, deviation in several]
            lines.append(
                [
                    f"{count}",
                    f"{len(z)}",
                    f"{fmean(error for error, _ in several):+.3f}",
                    f"{math.sqrt(fmean(value**2 for value in z)):.2f}",
                    f"{fmean(abs(value) <= 2 for value in z):.1%}",
                    f"{fmean(deviation for _, deviation in several):.3f}",
                ]
            )
    return ["| " + " | ".join(line) + " |" for line in lines]


HEAD = ["searches", "within 1 %", "mean regret", "worst", "trials", "again", "seconds / trials'", "to 1 %", "OOM"]
HEAD += ["changed", "claimed", "covered", "wall clock", "left out"]


def summary(found: Sequence[Found]) -> list[str]:
    """One line of the table: what these searches came to."""
    claims = [(one.low, one.true, one.high) for one in found if one.low and one.true and one.high]
    return [
        f"{len(found)}",
        f"{fmean(one.regret <= 0.01 for one in found):.1%}",
        f"{fmean(one.regret for one in found):.2%}",
        f"{max(one.regret for one in found):.1%}",
        f"{median(one.trials for one in found):.0f}",
        f"{median(one.again for one in found):.0f}",
        f"{median(one.seconds for one in found):.2f}",
        f"{np.quantile([one.to_one for one in found], 0.5, method='higher'):.0f}",
        f"{fmean(one.out_of_memory for one in found):.2f}",
        f"{fmean(one.changed for one in found):.0%}",
        f"{fmean(one.changed and one.low is not None and one.low > 1 for one in found):.1%}",
        f"{fmean(low <= true <= high for low, true, high in claims):.1%} of {len(claims)}" if claims else "–",
        f"{median(one.wall for one in found):.1f}",
        f"{fmean(one.left_out for one in found):.2f}",
    ]


def table_of(found: Sequence[Found], *by: str) -> list[str]:
    """A line for each combination of these fields of the case, as Markdown."""
    groups: dict[tuple[str, ...], list[Found]] = {}
    for one in found:
        groups.setdefault(tuple(str(getattr(one.case, name)) for name in by), []).append(one)
    lines = [[*by, *HEAD], ["---"] * (len(by) + len(HEAD)), *([*key, *summary(groups[key])] for key in sorted(groups))]
    return ["| " + " | ".join(line) + " |" for line in lines]


def read(path: Path) -> list[Found]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Found(Case(**found.pop("case")), **found) for found in map(json.loads, lines)]


def run(path: Path, wanted: Sequence[Case], workers: int, minutes: float) -> None:
    """Replay what is not in the file yet, until the minutes are over."""
    until, known = time.monotonic() + 60 * minutes, {found.case for found in read(path)}
    open_cases = [case for case in wanted if case not in known]
    with path.open("a", encoding="utf-8") as file, ProcessPoolExecutor(workers) as pool:
        for start in range(0, len(open_cases), 8 * workers):
            if time.monotonic() > until:
                print("cut: run again for the rest")
                return
            for found in pool.map(replayed, open_cases[start : start + 8 * workers]):
                file.write(json.dumps(asdict(found)) + "\n")
                file.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--page", nargs=2, metavar=("NAME", "TITLE"), help="Write reports/NAME.md.")
    parser.add_argument("--by", nargs="+", default=["noise"])
    parser.add_argument("--samplers", nargs="+", default=[OURS])
    parser.add_argument("--tables", nargs="+", default=recorded(JUDGES))
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--noises", nargs="+", type=float, default=[0.005, 0.02, 0.1])
    parser.add_argument("--drifts", nargs="+", type=float, default=[0.0])
    parser.add_argument("--seeds", nargs=2, type=int, default=[0, 1])
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--devices", nargs="+", type=int, default=[1])
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf)
    args = parser.parse_args()
    if not args.report:
        of_searches = args.tables, args.budgets, args.samplers, args.noises, args.drifts, args.devices
        cases = [
            Case(name, share, sampler, seed, noise, drift, args.equal, devices, args.slow if devices > 1 else 0.0)
            for seed, name, share, sampler, noise, drift, devices in product(range(*args.seeds), *of_searches)
        ]
        run(args.files[0], cases, args.workers, args.minutes)
    found = [one for path in args.files for one in read(path)]
    lines = table_of(found, *args.by)
    if any(one.errors for one in found):
        lines += ["", *calibration(found)]
    print("\n".join(lines))
    if args.page:
        name, title = args.page
        write_table(ROOT / "reports" / f"{name}.md", title, lines)


if __name__ == "__main__":
    main()
