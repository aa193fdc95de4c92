"""Searches cut at any time, replayed on recorded tables in virtual time: regret of the answer, and whether its claim is true.

python benchmarks/anytime.py: all searches on two cores, into reports/anytime.md and reports/anytime.svg.
python benchmarks/anytime.py FILE [--seeds N] [--samplers physics ...] [--tables ...] [--budgets ...]
[--devices 1 4] [--noises ...] [--drifts ...]: some of them into FILE, one after the other; what is in FILE is not searched again.
python benchmarks/anytime.py --report FILE ...: the page from these files.

A probe or round takes its recorded seconds on its device. Times are counted in probes of the baseline. A search that is cut
hands out `best_trial` of its whole rounds: the user's settings unless something else is shown to be better.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from executors import VirtualPool, on_device  # noqa: E402
from machine import write_table  # noqa: E402
from replay import (  # noqa: E402
    INFORMED,
    N_TRIALS,
    OURS,
    knowledge_of,
    lesson,
    markdown,
    priors,
    study_in_memory,
    table_named,
)
from tables import BUDGETS, Table, recorded  # noqa: E402

from autotune.core.interval import Ratio  # noqa: E402
from autotune.core.measurement import Outcome  # noqa: E402
from autotune.core.trial import Trial  # noqa: E402
from autotune.probe import Probe  # noqa: E402
from autotune.report.axes import Axis, Panel, drawn  # noqa: E402
from autotune.sampler.physics import WarmStart  # noqa: E402
from autotune.study.loop import search  # noqa: E402
from autotune.study.objective import best_trial, speed_up  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402

SAMPLERS = (OURS, INFORMED, "tpe", "random")
DEVICES = (1, 4)
NOISES = (0.005, 0.02, 0.1)
DRIFTS = (0.0, 0.02, 0.1)
"""Of which only `physics` has others than 0."""

TIMES = (2, 4, 6, 8, 10, 15, 20, 30, 45, 60)
"""In probes of the baseline, as all times here."""

FIRST_SEED = 100
"""Seeds below were used to choose constants."""

OBJECTIVE = "samples_per_second"
NONE, HOLDS, MISSES, FALSE = "", "h", "m", "f"
"""What a search tells with its answer: nothing, as that is the user's settings or these do not run; a speed-up whose interval
holds the true one; one that does not; and one that says faster while the answer is not."""


@dataclass(frozen=True)
class Case:
    """A search to replay. taught: the table of the study that the search knows, or empty."""

    table: str
    share: float
    sampler: str
    seed: int
    devices: int
    noise: float
    drift: float = 0.0
    taught: str = ""


Point = tuple[float, float, float, str]
"""(time, regret of the answer if the search is cut from here on, regret of the best that was probed, what is told)."""


@dataclass(frozen=True)
class Course:
    """A search from its beginning to its end. Regrets are 1 - speed / that of the optimum, at least 0, by the table's speeds.

    runs: whether the user's settings fit. points: from each time on. time: of the end.
    promised: true speed-up of the answer, and the ends of the interval that is told; None if nothing is told.
    """

    table: str
    share: float
    sampler: str
    seed: int
    devices: int
    noise: float
    drift: float
    taught: str
    runs: bool
    points: Sequence[Point]
    time: float
    probes: int
    rounds: int
    out_of_memory: int
    promised: tuple[float, float, float] | None

    @property
    def case(self) -> Case:
        return Case(**{field.name: getattr(self, field.name) for field in fields(Case)})

    def at(self, time: float) -> Point:
        """What holds at this time."""
        return [point for point in self.points if point[0] <= time][-1]


# A search --------------------------------------------------------------------------------------------------------------


class NotingPool(VirtualPool):
    """Devices in virtual time; what is known is noted each time before it passes."""

    def __init__(self, probes: Mapping[str, Probe], note: Callable[[float], None]) -> None:
        super().__init__(probes)
        self.note = note

    def _next(self) -> tuple[str, Any, BaseException | None]:
        self.note(self.clock)
        return super()._next()


def answer(trials: Sequence[Trial]) -> tuple[Trial | None, Ratio | None]:
    """(what a search that is cut after these trials hands out, the speed-up that it tells)."""
    best = best_trial(trials, OBJECTIVE)
    if best is None or best.number == 0 or trials[0].number != 0:
        return best, None
    return best, speed_up(best, trials[0], OBJECTIVE)


def searched(
    table: Table, case: Case, knowledge: WarmStart, seen: Callable[[float, Sequence[Trial]], None]
) -> tuple[Sequence[Trial], float]:
    """The real loop: (its trials, seconds of virtual time). seen: called with the seconds and the trials known, as time passes.

    Nothing else here knows how a search is run.
    """
    budget = knowledge.allowed_bytes
    sampler = case.sampler.partition(",")[0]
    plan = Plan(N_TRIALS, OBJECTIVE, budget, sampler=sampler, seed=case.seed)

    def clock() -> float:
        return pool.clock

    with study_in_memory(table, plan, knowledge) as study:
        probes = {
            f"d{device}": on_device(table, budget, case.seed, case.noise, 1.0, device, case.drift, clock)
            for device in range(case.devices)
        }
        pool = NotingPool(probes, lambda seconds: seen(seconds, study.trials))
        search(study, pool)
        seen(pool.clock, study.trials)
        return study.trials, pool.clock


def replayed(table: Table, case: Case, knowledge: WarmStart) -> Course:
    """One search, with what it would have handed out at any time."""
    budget, baseline = knowledge.allowed_bytes, table.space.baseline
    optimum = max(table.speeds[item] for item in table.measured if table.peaks[item] <= budget)
    runs = table.peaks[baseline] <= budget
    untuned = max(0.0, 1 - table.speeds[baseline] / optimum) if runs else 1.0
    points: list[Point] = [(0.0, untuned, untuned, NONE)]

    def truth(trial: Trial) -> float:
        return table.speeds[trial.configuration] / table.speeds[baseline]

    def seen(seconds: float, trials: Sequence[Trial]) -> None:
        best, gain = answer(trials)
        able = [table.speeds[trial.configuration] for trial in trials if trial.feasible]
        handed = max(0.0, 1 - table.speeds[best.configuration] / optimum) if best else untuned
        told = NONE if best is None or gain is None else judged(gain, truth(best))
        probed = min([untuned, *(max(0.0, 1 - speed / optimum) for speed in able)])
        now = (round(seconds / table.baseline_seconds, 2), round(handed, 4), round(probed, 4), told)
        if points[-1][0] == now[0]:
            points.pop()
        if not points or points[-1][1:] != now[1:]:
            points.append(now)

    trials, seconds = searched(table, case, knowledge, seen)
    best, gain = answer(trials)
    promised = [truth(best), gain.low, gain.high] if best is not None and gain is not None else None
    return Course(
        **asdict(case),
        runs=runs,
        points=points,
        time=round(seconds / table.baseline_seconds, 2),
        probes=len(trials),
        rounds=sum(len(trial.confirmations) for trial in trials),
        out_of_memory=sum(trial.measurement.outcome is Outcome.OUT_OF_MEMORY for trial in trials[1:]),
        promised=promised and tuple(round(number, 4) for number in promised),
    )


def judged(gain: Ratio, true: float) -> str:
    """Whether a speed-up that is told holds."""
    if gain.low > 1 >= true:
        return FALSE
    return HOLDS if gain.low <= true <= gain.high else MISSES


def one_search(case: Case) -> Course:
    table, prior = table_named(case.table), priors()[case.table]
    past = (lesson(case.taught, case.table, case.noise),) if case.taught else ()
    return replayed(table, case, knowledge_of(table, table.budget(case.share), prior, past))


# All searches ------------------------------------------------------------------------------------------------------------


def cases(args: argparse.Namespace) -> list[Case]:
    """What to replay, in an order that a cut run is representative of; another seed for each table and budget."""
    tables = recorded()
    wanted = []
    for repeat in range(args.seeds):
        for sampler, devices, noise, drift in product(args.samplers, args.devices, args.noises, args.drifts):
            if drift and sampler != OURS:
                continue
            for number, (share, table) in enumerate(product(BUDGETS, tables)):
                seed = FIRST_SEED + repeat * len(BUDGETS) * len(tables) + number
                other = tables[(tables.index(table) + 1 + (number + repeat) % (len(tables) - 1)) % len(tables)]
                taught = other if sampler == INFORMED else ""
                if table in args.tables and share in args.budgets:
                    wanted.append(Case(table, share, sampler, seed, devices, noise, drift, taught))
    return wanted


def read(path: Path) -> list[Course]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Course(**json.loads(line)) for line in lines]


def run(path: Path, wanted: Sequence[Case], workers: int) -> None:
    """Replay what is not in the file yet."""
    finished = {course.case for course in read(path)}
    open_cases = [case for case in wanted if case not in finished]
    with path.open("a", encoding="utf-8") as file, ProcessPoolExecutor(workers) as pool:
        each = map if workers == 1 else pool.map
        for course in each(one_search, open_cases):
            file.write(json.dumps(asdict(course), separators=(",", ":")) + "\n")
            file.flush()


# The page ----------------------------------------------------------------------------------------------------------------


def rows(
    courses: Iterable[Course], names: Sequence[str], cells: Callable[[Sequence[Course]], Iterable[str]]
) -> list[list[str]]:
    """A line for each combination of these fields, in the order of SAMPLERS where that is one: the fields, then the cells."""
    groups: dict[tuple[Any, ...], list[Course]] = {}
    for course in courses:
        groups.setdefault(tuple(getattr(course, name) for name in names), []).append(course)

    def order(key: tuple[Any, ...]) -> list[Any]:
        return [SAMPLERS.index(value) if value in SAMPLERS else value for value in key]

    return [[*map(str, key), *cells(groups[key])] for key in sorted(groups, key=order)]


def regrets(place: int, times: Sequence[float] = TIMES) -> Callable[[Sequence[Course]], list[str]]:
    """Cells: how many searches, and at each time the mean of this number of their points and its 95 % quantile."""

    def cells(courses: Sequence[Course]) -> list[str]:
        known = [[float(course.at(time)[place]) for course in courses] for time in times]
        return [f"{len(courses)}", *(f"{fmean(each):.1%} ({np.quantile(each, 0.95):.0%})" for each in known)]

    return cells


def losses(courses: Sequence[Course]) -> list[str]:
    """Cells: the mean regret of the best probed at some times, and what is lost besides as nothing better is shown."""
    cells = [f"{len(courses)}"]
    for time in (4, 8, 15, 30, 60):
        handed, probed = (fmean(float(course.at(time)[place]) for course in courses) for place in (1, 2))
        cells.append(f"{probed:.1%} + {handed - probed:.1%}")
    return cells


def ends(courses: Sequence[Course]) -> list[str]:
    """Cells: what whole searches came to."""
    return [
        f"{len(courses)}",
        f"{median(course.time for course in courses):.0f}",
        f"{median(course.probes for course in courses):.0f}",
        f"{median(course.rounds for course in courses):.0f}",
        f"{fmean(course.out_of_memory for course in courses):.2f}",
        f"{fmean(float(course.points[-1][1]) for course in courses):.2%}",
        f"{fmean(float(course.points[-1][1]) <= 0.01 for course in courses):.0%}",
    ]


def promises(courses: Sequence[Course]) -> list[str]:
    """Cells: how many whole searches tell a speed-up, how many of these hold, and how many say faster of what is not."""
    told = [(course, course.promised) for course in courses if course.promised]
    cells = [f"{len(courses)}", f"{len(told)}"]
    if not told:
        return [*cells, "-", "-", "-", "-"]
    above = sum(true > high for _, (true, _, high) in told)
    below = sum(true < low for _, (true, low, _) in told)
    width = median((high - low) / 2 / true for _, (true, low, high) in told)
    false = sum(course.points[-1][3] == FALSE for course, _ in told)
    return [*cells, f"{1 - (above + below) / len(told):.0%}", f"{above} / {below}", f"±{width:.1%}", f"{false}"]


def cut_promises(courses: Sequence[Course]) -> list[str]:
    """Cells: at each time the share of searches that tell a speed-up, of these the share that holds, and how many are FALSE."""
    cells = [f"{len(courses)}"]
    for time in TIMES:
        told = [said for course in courses if (said := course.at(time)[3])]
        false = f", {told.count(FALSE)} false" if FALSE in told else ""
        holds = f": {fmean(said == HOLDS for said in told):.0%}{false}" if told else ""
        cells.append(f"{len(told) / len(courses):.0%}{holds}")
    return cells


def report(courses: Sequence[Course]) -> list[str]:
    """The page without its head."""
    quiet = [course for course in courses if not course.drift]
    run_as_they_are = [course for course in quiet if course.runs]
    ours = [course for course in courses if course.sampler == OURS]
    promised = "searches", "tell a speed-up", "it holds", "truth above / below", "half width", "faster told, and false"
    lines = [NOTES, "", "![Regret over time](anytime.svg)", ""]

    def table(title: str, some: Sequence[Course], names: Sequence[str], cells: Any, head: Sequence[str]) -> None:
        if not some:
            return
        said = ["budget" if name == "share" else name for name in names]
        lines.extend([f"## {title}", "", *markdown([*said, *head], rows(some, names, cells)), ""])

    for number in DEVICES:
        of = f"{number} device{'s' * (number > 1)}"
        names = ("noise", "sampler")
        head = ("searches", *(f"t = {time}" for time in TIMES))
        some = [course for course in run_as_they_are if course.devices == number]
        table(f"Regret of the answer, {of}, the user's settings fit", some, names, regrets(1), head)
        table(f"Regret of the best probed, {of}, the user's settings fit", some, names, regrets(2), head)
        some = [course for course in quiet if course.devices == number and not course.runs]
        table(f"Regret of the answer, {of}, the user's settings do not fit", some, names, regrets(1), head)
    names = ("noise", "table", "share")
    head = ("searches", *(f"t = {time}" for time in (4, 8, 15, 30, 60)))
    some = [course for course in ours if course.devices == 1 and not course.drift]
    table("Not found + not shown, 1 device", some, names, losses, head)
    names = ("devices", "noise", "sampler")
    head = ("searches", "time", "probes", "rounds", "OOM a search", "mean regret", "within 1 %")
    table("Whole searches", quiet, names, ends, head)
    names = ("devices", "drift", "noise")
    table("What a whole search tells", ours, names, promises, promised)
    some = [course for course in quiet if course.sampler != OURS]
    table("The same of other samplers, no drift", some, ("sampler", "noise"), promises, promised)
    head = ("searches", *(f"t = {time}" for time in TIMES))
    table("What a search tells that is cut", ours, names, cut_promises, head)
    table("Regret of the answer with drift, all budgets", ours, names, regrets(1), head)
    return lines


COLOURS = dict(zip(SAMPLERS, ("best", "p3", "bad", "muted"), strict=True))


def figure(courses: Sequence[Course]) -> str:
    """SVG of the mean regret over time: a panel for each number of devices and noise, a line for each sampler."""
    times = np.arange(0.0, 60.5, 0.5)
    lines: dict[tuple[int, float], dict[str, tuple[str, list[float]]]] = {}
    for devices, noise, sampler in product(DEVICES, NOISES, SAMPLERS):
        some = [
            course
            for course in courses
            if (course.devices, course.noise, course.sampler) == (devices, noise, sampler)
            and course.runs
            and not course.drift
        ]
        if not some:
            continue
        for place, style, text in ((1, "", sampler), (2, " dotted", f"{sampler}, best probed")):
            if place == 1 or sampler == OURS:
                mean = [100 * fmean(float(course.at(time)[place]) for course in some) for time in times]
                lines.setdefault((devices, noise), {})[text] = (f"{COLOURS[sampler]}{style}", mean)
    most = 1.05 * max((max(mean) for panel in lines.values() for _, mean in panel.values()), default=1.0)
    panels = []
    for (row, devices), (column, noise) in product(enumerate(DEVICES), enumerate(NOISES)):
        left, top = 220.0 * column, 215.0 * row + 15
        label = "time in probes of the baseline" if row == len(DEVICES) - 1 else ""
        drawn_lines = [
            (role, "polyline", [*zip(times, mean, strict=True)])
            for role, mean in lines.get((devices, noise), {}).values()
        ]
        panels.append(
            Panel(
                Axis(label, 0.0, 60.0, left, left + 200),
                Axis("mean regret, %", 0.0, most, top + 170, top),
                f"{devices} device{'s' * (devices > 1)}, noise {noise:.1%}",
                lines=drawn_lines,
            )
        )
    legend = {text: role for panel in lines.values() for text, (role, _) in panel.items()}
    title = "Regret of the answer over time"
    caption = "Solid: the answer if the search is cut. Dotted: the best that was probed by then."
    return drawn(
        title, panels, f"{title}, the user's settings fit", caption, [(role, text) for text, role in legend.items()]
    )


NOTES = """\
Time is counted in probes of the baseline (2.6 to 4.2 s in these tables). Each probe, round and training for the losses takes
its recorded seconds, its start included; choosing the next probe takes none. A search that is cut at t hands out what an
interrupted one does: of the trials that were measured side by side with the user's settings the best that is shown to be
faster, or if there is none yet the best that its probe shows to be; else the user's settings. Regret is 1 - speed / speed of
the fastest configuration that fits, by the table's speeds: mean, and in brackets the 95 % quantile. Before the baseline's probe
has ended it is that of the user's settings, and 100 % if these do not fit: then everything that was measured counts as shown.

Regret of the best probed is what the search could have handed out if it knew all speeds. The rest of the regret was not found
yet; the difference was found and is not shown.

Noise is the standard deviation of the logarithm of speed between two probes of one configuration. Drift is that of a factor on
all speeds of a device, an Ornstein-Uhlenbeck process with a time constant of ten probes of the baseline. Each of four devices
drifts by itself. Neither changes how long a probe takes. Every table and budget has a seed of its own, from 100 on; a search of
another sampler, number of devices, noise or drift has the same seed.

A search tells a speed-up if its answer is not the user's settings and these run. It holds if its 95 % interval contains the
quotient of the table's speeds. "False" is a speed-up that is told to be above 1 by its whole interval and is not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--tables", nargs="+", default=recorded())
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS)
    parser.add_argument("--devices", nargs="+", type=int, default=DEVICES)
    parser.add_argument("--noises", nargs="+", type=float, default=NOISES)
    parser.add_argument("--drifts", nargs="+", type=float, default=DRIFTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = args.files or [Path(folder) / "all.jsonl"]
        if not args.report:
            run(files[0], cases(args), workers=1 if args.files else 2)
        courses = [course for path in files for course in read(path)]
    if args.report or not args.files:
        (ROOT / "reports" / "anytime.svg").write_text(figure(courses) + "\n", encoding="utf-8")
        write_table(ROOT / "reports" / "anytime.md", "Searches cut at any time", report(courses))


if __name__ == "__main__":
    main()
