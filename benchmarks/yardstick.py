"""Searches of public autotuners beside ours on the recorded tables: performance score, and regret over measurements and seconds.

python benchmarks/yardstick.py: all searches on two cores, into reports/yardstick.md and reports/yardstick.svg.
python benchmarks/yardstick.py FILE [--rivals autotune smac …] [--tables …] [--shares …] [--seeds N] [--noise 0.02]
[--workers N]: some of them into FILE; what is in FILE is not searched again, so that a run can be cut and split by hand.
python benchmarks/yardstick.py --report FILE … [--out FOLDER]: the page and the figure from these files.
python benchmarks/yardstick.py --export FOLDER: each table and budget as a cache file of Kernel Tuner (NAME-SHARE.json) and as
T4 (NAME-SHARE_T4.json), for tools that read these.

Needs beside the project's environment: kernel-tuner 1.5, smac 2.4 and autotuning-methodology 1.1, which bring ConfigSpace,
scikit-learn, pymoo and matplotlib. A virtual environment of their own that sees the project's packages does:

    python -m venv /tmp/yardstick
    echo $PWD/.venv/lib/python3.11/site-packages > /tmp/yardstick/lib/python3.11/site-packages/project.pth
    /tmp/yardstick/bin/pip install kernel-tuner==1.5.0 smac==2.4.1 autotuning-methodology==1.1.0
    OMP_NUM_THREADS=1 /tmp/yardstick/bin/python benchmarks/yardstick.py

A seed of one table and budget takes 20 to 50 s of one core, nearly all of it SMAC's and Optuna's Gaussian process's: six tables,
four budgets and five seeds 20 to 50 minutes on two cores. SMAC's other facade ("smac blackbox", a Gaussian process that is fitted
after each measurement) takes a minute a search and runs only where --rivals names it. The page takes a minute or two.
"""

import argparse
import contextlib
import io
import json
import logging
import math
import random
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise, product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from machine import markdown, write_table  # noqa: E402
from replay import N_TRIALS, knowledge_of, searched  # noqa: E402
from tables import BUDGETS, JUDGES, Table, TableProbe, read_table, recorded  # noqa: E402

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.slot import Slot  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.space.settings import SETTINGS  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402

MEASUREMENTS = 40
"""Measurements of each rival; most of the score's time ranges end before."""
TIMES = (3, 5, 10, 20)
"""Of the page: in measurements, and in median measurements' seconds."""
CLOSE = 0.01
AHEAD = 0.001
"""Difference of mean regrets from which a rival counts as ahead."""
DRAWS = 5
"""Of the score's curves, which differ by 0.05 from one to the next."""
IN_A_ROW = 20
"""Repeated proposals in a row after which a search of Optuna or SMAC has ended."""
FAILED = "RuntimeFailedConfig"
"""Kernel Tuner's name for a configuration that compiles and does not run."""


# A table under a memory budget ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One measurement of a search. place: of the configuration in the table's order. speed: as measured, samples / second; None:
    out of memory. again: it was measured before."""

    place: int
    speed: float | None
    seconds: float
    again: bool = False


@dataclass(frozen=True)
class Task:
    """A table under a memory budget, and what a measurement of each configuration gives there by this seed and noise."""

    table: Table
    share: float
    seed: int = 0
    noise: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.table.name}-{self.share}"

    @cached_property
    def budget(self) -> int:
        return self.table.budget(self.share)

    @cached_property
    def configurations(self) -> list[Configuration]:
        return list(self.table.measured)

    @cached_property
    def points(self) -> Mapping[Configuration, Point]:
        """Configuration -> its measurement, the same as the first that our search's probe makes."""
        probe = TableProbe(self.table, self.budget, self.seed, self.noise)
        options = ProbeOptions(Slot(), 0.0)
        measurements = [probe(configuration, options) for configuration in self.configurations]
        return {
            configuration: Point(place, made.samples_per_second if made.feasible else None, made.probe_seconds)
            for place, (configuration, made) in enumerate(zip(self.configurations, measurements, strict=True))
        }

    @cached_property
    def true_speeds(self) -> list[float | None]:
        """By place: samples / second without noise; None: does not fit."""
        table = self.table
        return [table.speeds[item] if table.peaks[item] <= self.budget else None for item in self.configurations]

    @cached_property
    def median_s(self) -> float:
        """Median seconds of a measurement."""
        return median(point.seconds for point in self.points.values())

    @cached_property
    def parameters(self) -> Mapping[str, tuple[Any, ...]]:
        """Settings with several values -> these values."""
        return {name: tuple(values) for name, values in self.table.space.values.items() if len(values) > 1}

    @cached_property
    def by_values(self) -> Mapping[tuple[Any, ...], Point]:
        """Values of `parameters`, in their order -> the measurement of the configuration that has them."""
        return {
            tuple(configuration.values[name] for name in self.parameters): point
            for configuration, point in self.points.items()
        }


# Kernel Tuner's formats ----------------------------------------------------------------------------------------------------


def kernel_tuner_cache(task: Task) -> dict[str, Any]:
    """The cache file of Kernel Tuner: each configuration's `time` of a sample and its measurement's seconds, in milliseconds.

    Out of memory is a configuration that fails at run time and takes its seconds.
    """
    entries = {}
    for values, point in task.by_values.items():
        entries[",".join(map(str, values))] = {
            **dict(zip(task.parameters, values, strict=True)),
            "time": FAILED if point.speed is None else 1000 / point.speed,
            "compile_time": 0.0,
            "verification_time": 0.0,
            "benchmark_time": 1000 * point.seconds,
            "strategy_time": 0.0,
            "framework_time": 0.0,
        }
    return {
        "device_name": f"budget-{task.share}",
        "kernel_name": task.table.name,
        "problem_size": [1],
        "tune_params_keys": list(task.parameters),
        "tune_params": {name: list(values) for name, values in task.parameters.items()},
        "objective": "time",
        "cache": entries,
    }


def read_cache(text: str) -> dict[tuple[Any, ...], tuple[float | None, float]]:
    """Values of a cache file's parameters, in their order -> (samples / second or None, seconds)."""
    loaded = json.loads(text)
    return {
        tuple(entry[name] for name in loaded["tune_params_keys"]): (
            None if entry["time"] == FAILED else 1000 / entry["time"],
            entry["benchmark_time"] / 1000,
        )
        for entry in loaded["cache"].values()
    }


def t4(configurations: Sequence[Configuration], results: Iterable[tuple[int, float | None, float]]) -> dict[str, Any]:
    """Results in the T4 format: (place, milliseconds of a sample or None, seconds) each."""
    return {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "seconds"},
        "results": [
            {
                "configuration": dict(configurations[place].values),
                "times": {"benchmark": seconds},
                "invalidity": "runtime" if time is None else "correct",
                "correctness": 1,
                "measurements": [{"name": "time", "value": FAILED if time is None else time, "unit": "ms"}],
                "objectives": ["time"],
            }
            for place, time, seconds in results
        ],
    }


def whole_table(task: Task) -> dict[str, Any]:
    """The table under its budget in the T4 format."""
    times = [None if speed is None else 1000 / speed for speed in task.true_speeds]
    return t4(task.configurations, ((point.place, times[point.place], point.seconds) for point in task.points.values()))


def export(folder: Path, tasks: Iterable[Task]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        (folder / f"{task.name}.json").write_text(json.dumps(kernel_tuner_cache(task)), encoding="utf-8")
        (folder / f"{task.name}_T4.json").write_text(json.dumps(whole_table(task)), encoding="utf-8")


# Searches ------------------------------------------------------------------------------------------------------------------


def ours(task: Task) -> list[Point]:
    """The real loop: its measurements in the order in which they were made, those that repeat an earlier one included."""
    table = task.table
    plan = Plan(N_TRIALS, "samples_per_second", task.budget, seed=task.seed)
    probe = TableProbe(table, task.budget, task.seed, task.noise)
    standing, _ = searched(table, plan, knowledge_of(table, task.budget), probe)
    made = [
        (measurement.started_s or 0.0, trial.configuration, measurement, bool(number))
        for trial in standing.trials
        for number, measurement in enumerate((trial.measurement, *trial.confirmations))
    ]
    return [
        Point(
            task.points[configuration].place,
            measurement.samples_per_second if measurement.feasible else None,
            measurement.probe_seconds,
            again,
        )
        for _, configuration, measurement, again in sorted(made, key=lambda item: item[0])
    ]


def at_random(task: Task) -> list[Point]:
    """Without replacement."""
    points = list(task.points.values())
    random.Random(task.seed).shuffle(points)
    return points[:MEASUREMENTS]


def kernel_tuner(strategy: str, task: Task) -> list[Point]:
    """One of Kernel Tuner's strategies in its simulation mode; what it visits again costs nothing there and is left out."""
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel

    random.seed(task.seed)
    np.random.seed(task.seed)
    is_product = len(task.by_values) == math.prod(map(len, task.parameters.values()))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "cache.json"
        path.write_text(json.dumps(kernel_tuner_cache(task)), encoding="utf-8")
        results, _ = tune_kernel(
            task.table.name,
            "",
            (1,),
            [],
            {name: list(values) for name, values in task.parameters.items()},
            restrictions=None if is_product else [FunctionConstraint(lambda *values: values in task.by_values)],
            cache=str(path),
            simulation_mode=True,
            strategy=strategy,
            strategy_options={"max_fevals": MEASUREMENTS},
            objective="time",
            quiet=True,
            seed=task.seed,
        )
    visited = (task.by_values[tuple(result[name] for name in task.parameters)] for result in results)
    return list(dict.fromkeys(visited))


Proposal = tuple[tuple[Any, ...], Callable[[Point | None], None]]
"""Values of a task's parameters, and a function that is told their measurement; None: the table has none."""


def proposed(task: Task, ask: Callable[[], Proposal | None]) -> list[Point]:
    """Measurements of what `ask` proposes until it proposes nothing; a repeated proposal is told again, and costs nothing."""
    points: dict[Point, None] = {}
    repeated = 0
    while len(points) < min(MEASUREMENTS, len(task.points)) and repeated < IN_A_ROW:
        proposal = ask()
        if proposal is None:
            break
        values, tell = proposal
        point = task.by_values.get(values)
        repeated = repeated + 1 if point is None or point in points else 0
        if point is not None:
            points[point] = None
        tell(point)
    return list(points)


def optuna_sampler(name: str, task: Task) -> list[Point]:
    """A sampler of Optuna as it comes; out of memory is a value of 0 and a constraint that is violated."""
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=getattr(optuna.samplers, name)(seed=task.seed))
    distributions = {
        setting: IntDistribution(0, len(values) - 1) if SETTINGS[setting].ordered else CategoricalDistribution(values)
        for setting, values in task.parameters.items()
    }

    def ask() -> Proposal:
        trial = study.ask(distributions)

        def tell(point: Point | None) -> None:
            speed = point.speed if point else None
            trial.set_constraint("fits", 1.0 if speed is None else -1.0)
            study.tell(trial, speed or 0.0)

        values = (
            choices[trial.params[setting]] if SETTINGS[setting].ordered else trial.params[setting]
            for setting, choices in task.parameters.items()
        )
        return tuple(values), tell

    return proposed(task, ask)


def smac_facade(name: str, task: Task) -> list[Point]:
    """A facade of SMAC as it comes, by ask and tell; out of memory costs as no speed does."""
    import smac
    from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, OrdinalHyperparameter
    from smac.main.exceptions import ConfigurationSpaceExhaustedException
    from smac.runhistory import StatusType, TrialValue

    space = ConfigurationSpace(seed=task.seed)
    for setting, values in task.parameters.items():
        kind = OrdinalHyperparameter if SETTINGS[setting].ordered else CategoricalHyperparameter
        space.add(kind(setting, [str(value) for value in values]))
    named = {setting: {str(value): value for value in values} for setting, values in task.parameters.items()}
    with tempfile.TemporaryDirectory() as folder:
        scenario = smac.Scenario(
            space, deterministic=True, n_trials=MEASUREMENTS, seed=task.seed, output_directory=Path(folder)
        )
        facade = getattr(smac, name)(scenario, lambda config, seed=0: 0.0, overwrite=True, logging_level=logging.ERROR)

        def ask() -> Proposal | None:
            try:
                info = facade.ask()
            except (StopIteration, ConfigurationSpaceExhaustedException):
                return None

            def tell(point: Point | None) -> None:
                speed = point.speed if point else None
                status = StatusType.SUCCESS if speed else StatusType.MEMORYOUT
                facade.tell(info, TrialValue(-(speed or 0.0), status=status), save=False)

            return tuple(values[info.config[setting]] for setting, values in named.items()), tell

        return proposed(task, ask)


OURS, FREE = "autotune", "autotune, repeats free"
SLOW = "smac blackbox"
"""A minute a search: only where it is asked for."""
STRATEGIES = (
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "genetic_algorithm",
    "diff_evo",
    "pso",
    "firefly_algorithm",
    "simulated_annealing",
    "dual_annealing",
    "basinhopping",
    "greedy_ils",
    "greedy_mls",
    "ordered_greedy_mls",
    "mls",
    "bayes_opt",
)
"""Of Kernel Tuner; the first two were written by a language model. Its random sampling is `random`, its `skopt` and
`pyatf_strategies` need packages that it does not bring, and `nsga2` and `nsga3` are for several objectives. `diff_evo` and
`bayes_opt` draw by more than the seeds of `random` and NumPy: they differ from run to run."""
RIVALS: Mapping[str, Callable[[Task], list[Point]]] = {
    OURS: ours,
    "smac": partial(smac_facade, "HyperparameterOptimizationFacade"),
    SLOW: partial(smac_facade, "BlackBoxFacade"),
    "optuna tpe": partial(optuna_sampler, "TPESampler"),
    "optuna gp": partial(optuna_sampler, "GPSampler"),
    "random": at_random,
    **{f"kernel tuner {name}": partial(kernel_tuner, name) for name in STRATEGIES},
}


@dataclass(frozen=True)
class Case:
    """A search to make."""

    table: str
    share: float
    rival: str
    seed: int
    noise: float = 0.0


@dataclass(frozen=True)
class Search:
    """A search that was made: its measurements in their order, or the error that ended it."""

    case: Case
    points: tuple[Point, ...] = ()
    error: str = ""

    @property
    def task(self) -> Task:
        return task_of(self.case.table, self.case.share)

    def line(self) -> str:
        """As text: a measurement is [place, speed, seconds, again]."""
        points = [[point.place, point.speed, point.seconds, int(point.again)] for point in self.points]
        return json.dumps({**asdict(self.case), "points": points, "error": self.error})

    @classmethod
    def read(cls, line: str) -> "Search":
        facts = json.loads(line)
        points = (Point(place, speed, seconds, bool(again)) for place, speed, seconds, again in facts.pop("points"))
        error = facts.pop("error")
        return cls(Case(**facts), tuple(points), error)


@cache
def task_of(table: str, share: float) -> Task:
    """Without noise."""
    return Task(read_table(table), share)


def made(case: Case) -> Search:
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        task = replace(task_of(case.table, case.share), seed=case.seed, noise=case.noise)
        try:
            return Search(case, tuple(RIVALS[case.rival](task)))
        except Exception as error:
            if case.rival == OURS:
                raise
            return Search(case, error=repr(error))  # of a rival's package; the other searches go on


def cases(args: argparse.Namespace) -> list[Case]:
    """Searches, in an order of which a cut run is representative."""
    wanted = product(range(args.seeds), args.tables, args.shares, args.rivals)
    return [
        Case(table, share, rival, seed_of(table, share, number), args.noise) for number, table, share, rival in wanted
    ]


def seed_of(table: str, share: float, number: int) -> int:
    """Another for each table and budget: the same first proposals on all of them would be one sample."""
    return zlib.crc32(f"{table} {share} {number}".encode()) % 2**31


def read(path: Path) -> list[Search]:
    return [Search.read(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run(path: Path, wanted: Sequence[Case], workers: int) -> None:
    """Make the searches that are not in the file yet."""
    finished = {search.case for search in read(path)}
    open_cases = [case for case in wanted if case not in finished]
    with path.open("a", encoding="utf-8") as file, ProcessPoolExecutor(workers) as pool:
        searches = map(made, open_cases) if workers == 1 else pool.map(made, open_cases, chunksize=4)
        for search in searches:
            file.write(search.line() + "\n")
            file.flush()


# Regret --------------------------------------------------------------------------------------------------------------------


def leaders(points: Iterable[Point]) -> list[int | None]:
    """After each measurement, the place of the configuration with the highest mean of its measured speeds; None: nothing fits."""
    speeds: dict[int, list[float]] = {}
    places: list[int | None] = []
    for point in points:
        if point.speed is not None:
            speeds.setdefault(point.place, []).append(point.speed)
        places.append(max(speeds, key=lambda place: fmean(speeds[place]), default=None))
    return places


def course(search: Search) -> tuple[list[int | None], list[float]]:
    """(leader after each measurement, seconds of each); where repeats are free, what they tell comes with the one before them."""
    led, seconds = leaders(search.points), [point.seconds for point in search.points]
    if search.case.rival != FREE:
        return led, seconds
    new = [number for number, point in enumerate(search.points) if not point.again]
    return [led[end - 1] for _, end in pairwise([*new, len(led)])], [seconds[number] for number in new]


def regrets(led: Iterable[int | None], true_speeds: Sequence[float | None], optimum: float) -> list[float]:
    """1 - true speed of each leader / optimum; 1 before anything fits."""
    return [1.0 if place is None else 1 - (true_speeds[place] or 0.0) / optimum for place in led]


def at_measurements(curve: Sequence[float], count: int) -> float:
    """Regret after this many measurements; a search that has ended keeps its answer."""
    return curve[min(count, len(curve)) - 1] if count and curve else 1.0


def at_seconds(curve: Sequence[float], ends: Sequence[float], seconds: float) -> float:
    """Regret at this time, of measurements that ended at these."""
    return at_measurements(curve, sum(end <= seconds for end in ends))


def measurements_to(curve: Sequence[float], regret: float) -> float:
    """Measurements until the regret is at most this, infinite if it never is."""
    return next((count for count, value in enumerate(curve, 1) if value <= regret), math.inf)


@dataclass(frozen=True)
class Curve:
    """A search as regret over measurements and seconds. unit_s: median seconds of a measurement."""

    search: Search
    regrets: Sequence[float]
    ends: Sequence[float]
    unit_s: float

    @classmethod
    def of(cls, search: Search) -> "Curve":
        task = search.task
        led, seconds = course(search)
        return cls(
            search,
            regrets(led, task.true_speeds, task.table.optimum(task.budget)),
            list(accumulate(seconds)),
            task.median_s,
        )

    def after(self, count: int) -> float:
        return at_measurements(self.regrets, count)

    def at(self, units: float) -> float:
        return at_seconds(self.regrets, self.ends, units * self.unit_s)


def with_free_repeats(searches: Iterable[Search]) -> list[Search]:
    """The searches, and each of ours once more as one whose repeats are free."""
    found = list(searches)
    return found + [replace(one, case=replace(one.case, rival=FREE)) for one in found if one.case.rival == OURS]


# Performance score ---------------------------------------------------------------------------------------------------------


def scores(searches: Sequence[Search]) -> tuple[dict[str, float], list[str]]:
    """(rival -> performance score, tables and budgets that have none), by autotuning_methodology.

    0: as good as random sampling is expected to be at each time, 1: the optimum at each time; of the time from where random
    sampling has made 1 % of the way from the median to the optimum to where it has made 95 %. Schoonhoven et al., "A methodology
    for comparing optimization algorithms for auto-tuning" (Future Generation Computer Systems, 2024).
    """
    cells: dict[tuple[str, float], dict[str, list[Search]]] = {}
    for search in searches:
        rivals = cells.setdefault((search.case.table, search.case.share), {})
        rivals.setdefault(search.case.rival, []).append(search)
    performances: dict[str, list[float]] = {}
    without = []
    for (table, share), rivals in cells.items():
        try:
            scored = cell_scores(task_of(table, share), rivals)
        except ValueError as error:  # the optimum is reached at once, or by random sampling within the time
            without.append(f"{table} at {share}: {str(error.args[0])[:100]}")
            continue
        for rival, score in scored.items():
            performances.setdefault(rival, []).append(score)
    return {rival: fmean(several) for rival, several in performances.items()}, without


def cell_scores(task: Task, rivals: Mapping[str, Sequence[Search]]) -> dict[str, float]:
    """Rival -> performance score of its searches on one table and budget; raises ValueError where there is none."""
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
    from autotuning_methodology.caching import ResultsDescription
    from autotuning_methodology.curves import StochasticOptimizationAlgorithm
    from autotuning_methodology.report_experiments import get_strategies_aggregated_performance
    from autotuning_methodology.runner import write_results
    from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

    names = task.table.name, f"budget-{task.share}"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "table_T4.json"
        path.write_text(json.dumps(whole_table(task)), encoding="utf-8")
        space = SearchspaceStatistics(*names, True, ["benchmark"], ["time"], path)
        _, _, start_s, end_s = space.cutoff_point_fevals_time_start_end(0.01, 0.95)
        curves = []
        for number, (rival, searches) in enumerate(rivals.items()):
            result = ResultsDescription(
                Path(folder) / str(number), *names, f"rival{number}", rival, True, ["benchmark"], ["time"], True
            )
            write_results([scored_results(task, search, end_s) for search in searches], result)
            curves.append(StochasticOptimizationAlgorithm(result))
        times = np.linspace(start_s, end_s, 1000)
        cell = RandomSearchCalculatedBaseline(space), curves, space, times, np.arange(1, MEASUREMENTS)
        np.random.seed(0)  # its curves are of bags that are drawn
        draws = [get_strategies_aggregated_performance([cell], 0.95)[0] for _ in range(DRAWS)]
    return dict(zip(rivals, np.mean(draws, axis=(0, 2)).tolist(), strict=True))


def scored_results(task: Task, search: Search, end_s: float) -> list[dict[str, Any]]:
    """A search for the score, in the T4 format: the true time of its leader after each measurement.

    A search that has ended keeps its answer: that is measured again and again beyond the end of the time. Before anything fits
    there is no time, which the methodology leaves out; where that is so up to the end, it has the slowest that fits.
    """
    true_speeds = task.true_speeds
    slowest = min((place for place, speed in enumerate(true_speeds) if speed), key=lambda place: true_speeds[place])
    led, seconds = course(search)
    kept = math.ceil(max(0.0, 1.2 * end_s - sum(seconds)) / task.median_s)
    led += [led[-1] if led else None] * kept
    seconds += [task.median_s] * kept
    in_time = sum(place is not None and end <= end_s for place, end in zip(led, accumulate(seconds), strict=True))
    if in_time < 2:
        led = [slowest if place is None else place for place in led]
    times = [None if place is None else 1000 / true_speeds[place] for place in led]
    return t4(task.configurations, zip((place or 0 for place in led), times, seconds, strict=True))["results"]


# The page ------------------------------------------------------------------------------------------------------------------


def grouped(curves: Iterable[Curve]) -> dict[str, list[Curve]]:
    """Rival -> its curves, ours first."""
    groups: dict[str, list[Curve]] = {OURS: [], FREE: []}
    for curve in curves:
        groups.setdefault(curve.search.case.rival, []).append(curve)
    return {rival: group for rival, group in groups.items() if group}


GRIDS: Mapping[str, Callable[[Curve, float], float]] = {
    "after {} measurements": Curve.after,
    "at {} units of time": Curve.at,
}


def mean_regrets(
    groups: Mapping[str, Sequence[Curve]], regret: Callable[[Curve, float], float], time: int
) -> dict[str, float]:
    return {rival: fmean(regret(curve, time) for curve in group) for rival, group in groups.items() if rival != FREE}


def ahead(groups: Mapping[str, Sequence[Curve]]) -> list[str]:
    """Where a rival's mean regret is lower than ours: over all tables and budgets at any number of measurements and time, then on
    single tables and budgets at those of the page."""
    if OURS not in groups:
        return []
    lines, single = [], []
    for when, regret in GRIDS.items():
        better: dict[str, dict[int, float]] = {}
        for time in range(1, MEASUREMENTS + 1):
            means = mean_regrets(groups, regret, time)
            for rival, mean in means.items():
                if means[OURS] - mean > AHEAD:
                    better.setdefault(rival, {})[time] = means[OURS] - mean
        for rival, gaps in better.items():
            most = max(gaps, key=lambda time: gaps[time])
            lines.append(f"- {rival} {when.format(runs(list(gaps)))}; most at {most}, by {gaps[most]:.1%}")
    cells = {(curve.search.case.table, curve.search.case.share) for curve in groups[OURS]}
    for table, share in sorted(cells):
        own = {
            rival: [item for item in group if (item.search.case.table, item.search.case.share) == (table, share)]
            for rival, group in groups.items()
        }
        for (when, regret), time in product(GRIDS.items(), TIMES):
            means = mean_regrets({rival: group for rival, group in own.items() if group}, regret, time)
            several = [rival for rival, mean in means.items() if means[OURS] - mean > CLOSE]
            if several:
                best = min(several, key=lambda rival: means[rival])
                text = f"{means[OURS]:.1%} against {means[best]:.1%} of {best}, the best of {len(several)}"
                single.append((means[OURS] - means[best], f"- {table} at {share}, {when.format(time)}: {text}"))
    return [
        "Over all tables and budgets the mean regret of a rival is lower than ours:",
        "",
        *(lines or ["- nowhere"]),
        "",
        f"On a single table and budget, by more than {CLOSE:.0%}, the largest differences first:",
        "",
        *([line for _, line in sorted(single, reverse=True)] or ["- nowhere"]),
    ]


def runs(numbers: Sequence[int]) -> str:
    """`1 to 3, 7`: ascending numbers with their runs taken together."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


HEAD = [
    "search",
    "searches",
    "score",
    *(f"regret after {time}" for time in TIMES),
    *(f"at {time} units" for time in TIMES),
    "measurements to 1 %",
    "reached",
    "OOM a search",
]

NOTES = """\
A search sees the table's speeds with a noise of {noise:.1%} between measurements; a budget is a limit of memory at that share of
the way from the least to the highest peak. Out of memory is a configuration that is invalid and takes its seconds. The rivals
are as their packages ship them, with {measurements} measurements each, and may propose any configuration first; what they repeat
is free. Ours begins with the user's settings (which may not fit at the tightest budgets), is given what it knows of a model
before any probe (estimates of memory, number of operations), and ends by itself after at most {trials} configurations: then its
answer stays. What it measures again counts as a measurement; "repeats free" is the same search if that cost nothing.

Regret is 1 - speed of the fastest so far / speed of the fastest that fits; 100 % until something fits. A unit of time is the
median seconds of the table's measurements. "Measurements to 1 %": median (95 % quantile) until the regret is at most 1 %;
"reached": the searches in which it ever was.

Score: the performance score of autotuning_methodology over time, the mean of tables and budgets; deciding takes no time. 1 is
the optimum at once and 0 what random sampling is expected to have of the configurations that fit. `random` has less: on spaces
as small as these that expectation is too good (100 seeds on `bert-deep` and `vit-96` with all memory have -0.06), and it runs out
of memory as well.
Where populations are of 20 and more, most of these measurements are the first population."""


def report(searches: Sequence[Search], noise: float) -> tuple[list[str], list[Curve]]:
    """(the page without its head, its curves), of searches with this noise."""
    found = with_free_repeats(search for search in searches if not search.error)
    failed = Counter((search.case.rival, search.error[:80]) for search in searches if search.error)
    curves = [Curve.of(search) for search in found]
    groups = grouped(curves)
    performances, without = scores(found)

    def row(rival: str, group: Sequence[Curve]) -> list[str]:
        to_close = [measurements_to(curve.regrets, CLOSE) for curve in group]
        low, high = (np.quantile(to_close, share, method="higher") for share in (0.5, 0.95))
        misses = fmean(sum(point.speed is None for point in curve.search.points) for curve in group)
        return [
            rival,
            f"{len(group)}",
            f"{performances[rival]:.2f}" if rival in performances else "–",
            *(f"{fmean(curve.after(time) for curve in group):.1%}" for time in TIMES),
            *(f"{fmean(curve.at(time) for curve in group):.1%}" for time in TIMES),
            f"{whole(low)} ({whole(high)})",
            f"{fmean(number < math.inf for number in to_close):.0%}",
            f"{misses:.1f}",
        ]

    order = sorted(groups, key=lambda rival: -performances.get(rival, -math.inf))
    lines = [
        *markdown(HEAD, [row(rival, groups[rival]) for rival in order]),
        "",
        "![Regret over measurements and seconds](yardstick.svg)",
        "",
        *ahead(groups),
        "",
        *NOTES.format(noise=noise, measurements=MEASUREMENTS, trials=N_TRIALS).splitlines(),
    ]
    if failed:
        parts = [f"{rival} {count} times ({error})" for (rival, error), count in failed.items()]
        lines += ["", f"Ended by an error of its package, and not counted: {'; '.join(parts)}."]
    if without:
        lines += ["", f"Without a score, as the methodology has none there: {'; '.join(without)}."]
    return lines, curves


def whole(number: float) -> str:
    return "never" if number == math.inf else f"{number:.0f}"


COLOURS = {
    OURS: "#0b6e4f",
    FREE: "#0b6e4f",
    "smac": "#c1440e",
    SLOW: "#e8a27c",
    "optuna tpe": "#2b6cb0",
    "optuna gp": "#7b3fa0",
    "random": "#222222",
    "kernel tuner hybrid_vndx": "#b8860b",
    "kernel tuner adaptive_tabu_greywolf": "#d1478b",
}
"""The others are grey, with one line in the legend."""


def figure(curves: Sequence[Curve], path: Path) -> None:
    """Mean regret of each rival: over measurements, and over seconds."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "yardstick", "svg.fonttype": "none", "font.family": "sans-serif"})
    import matplotlib.pyplot as plt

    shown, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    most = max(TIMES)
    grids = [
        (left, np.arange(1, most + 1), Curve.after, "measurements", "steps-post"),
        (right, np.linspace(0.5, most, 80), Curve.at, "seconds, in median measurements", "default"),
    ]
    for axes, times, regret, label, style in grids:
        others = "Kernel Tuner's others"
        for rival, group in reversed(grouped(curves).items()):
            mean = [100 * fmean(regret(curve, time) for curve in group) for time in times]
            is_named = rival in COLOURS
            axes.plot(
                times,
                mean,
                color=COLOURS.get(rival, "#c8c8c8"),
                linewidth=2.6 if rival == OURS else 1.5 if is_named else 0.8,
                linestyle="dotted" if rival == FREE else "solid",
                drawstyle=style,
                label=rival if is_named else others,
                zorder=3 if is_named else 1,
            )
            if not is_named:
                others = None
        axes.set_xlabel(label)
        axes.set_xlim(0, most)
        axes.set_xticks(range(0, most + 1, 5))
        axes.grid(color="#eeeeee")
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylim(0, 100)
    left.set_ylabel("mean regret, %")
    handles, labels = right.get_legend_handles_labels()
    right.legend(handles[::-1], labels[::-1], frameon=False, fontsize=8)
    shown.savefig(path, format="svg", metadata={"Date": None})
    plt.close(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=ROOT / "reports", metavar="FOLDER")
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=[rival for rival in RIVALS if rival != SLOW])
    parser.add_argument("--tables", nargs="+", default=recorded(JUDGES))
    parser.add_argument("--shares", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.export:
        export(args.export, (task_of(table, share) for table, share in product(args.tables, args.shares)))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = args.files or [Path(folder) / "all.jsonl"]
        if not args.report:
            run(files[0], cases(args), args.workers)
        searches = [search for path in files for search in read(path)]
    if args.report or not args.files:
        lines, curves = report([search for search in searches if search.case.noise == args.noise], args.noise)
        args.out.mkdir(parents=True, exist_ok=True)
        figure(curves, args.out / "yardstick.svg")
        write_table(args.out / "yardstick.md", "Public autotuners on the recorded tables", lines)


if __name__ == "__main__":
    main()
