"""Searches cut at any time, replayed on recorded tables in virtual time: regret of the answer, and whether its claim is true.

python benchmarks/anytime.py: all searches on two cores, into reports/anytime.md and reports/anytime.svg.
python benchmarks/anytime.py FILE [--seeds N] [--samplers physics ...] [--tables ...] [--budgets ...]
[--devices 1 4] [--noises ...] [--drifts ...]: some of them into FILE, one after the other; what is in FILE is not searched again.
python benchmarks/anytime.py --report FILE ...: the page from these files.

Times are counted in probes of the baseline. A search that is cut hands out the answer of its standing: the user's settings unless
something else is shown to be better. The tables chose no constant.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from machine import markdown, write_table  # noqa: E402
from replay import N_TRIALS, OURS, Case, devices_of, knowledge_of, study_in_memory  # noqa: E402
from tables import BUDGETS, JUDGES, read_table, recorded  # noqa: E402

from autotune.core.interval import Ratio  # noqa: E402
from autotune.core.trial import Trial  # noqa: E402
from autotune.judge.standing import Standing  # noqa: E402
from autotune.report.axes import Axis, Panel, drawn  # noqa: E402
from autotune.study.loop import search  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402

SAMPLERS = (OURS, "tpe", "random")
DEVICES = (1, 4)
NOISES = (0.005, 0.02, 0.1)
DRIFTS = (0.0, 0.02, 0.1)
"""Only `physics` has others than 0."""

TIMES = (2, 4, 6, 8, 10, 15, 20, 30, 45, 60)
"""In probes of the baseline, as all times here."""

FIRST_SEED = 100
"""Other seeds than those of replay.py."""

NONE, HOLDS, MISSES, FALSE = "", "h", "m", "f"
"""What a search tells with its answer: nothing, as that is the user's settings or there is nothing to compare with; a speed-up
whose interval holds the true one; one that does not; and one that says faster while the answer is not."""

Point = tuple[float, float, float, str]
"""(time, regret of the answer if the search is cut from here on, regret of the best that was probed, what is told)."""


@dataclass(frozen=True)
class Course:
    """A search from its beginning to its end. Regrets are 1 - speed / that of the optimum, at least 0, by the table's speeds.

    runs: whether the user's settings fit. points: from each time on. promised: true speed-up of the answer, and the ends of the
    interval that is told; None if nothing is told.
    """

    case: Case
    runs: bool
    points: Sequence[Point]
    promised: Sequence[float] | None

    def at(self, time: float) -> Point:
        """What holds at this time."""
        return [point for point in self.points if point[0] <= time][-1]


# A search --------------------------------------------------------------------------------------------------------------


def claimed(standing: Standing) -> tuple[Trial | None, Ratio | None]:
    """(what a search that is cut hands out, the speed-up that it tells)."""
    best = standing.answer
    return best, None if best is None or best is standing.compared else standing.gain(best)


def replayed(case: Case) -> Course:
    """One search by the real loop, with what it would have handed out at any time."""
    table = read_table(case.table)
    budget, baseline = table.budget(case.share), table.space.baseline
    plan = Plan(N_TRIALS, "samples_per_second", budget, sampler=case.sampler, seed=case.seed)
    optimum, runs = table.optimum(budget), table.peaks[baseline] <= budget

    def regret(trial: Trial) -> float:
        return max(0.0, 1 - table.speeds[trial.configuration] / optimum)

    def truth(trial: Trial) -> float:
        compared = study.standing.compared
        return table.speeds[trial.configuration] / table.speeds[compared.configuration] if compared else 1.0

    untuned = max(0.0, 1 - table.speeds[baseline] / optimum) if runs else 1.0
    points: list[Point] = [(0.0, untuned, untuned, NONE)]

    def note() -> None:
        best, gain = claimed(study.standing)
        told = NONE if best is None or gain is None else judged(gain, truth(best))
        probed = min([untuned, *(regret(trial) for trial in study.standing.trials if trial.feasible)])
        regrets = round(regret(best) if best else untuned, 4), round(probed, 4)
        now = (round(pool.clock / table.baseline_seconds, 2), *regrets, told)
        if points[-1][0] == now[0]:
            points.pop()
        if not points or points[-1][1:] != now[1:]:
            points.append(now)

    pool = devices_of(table, case, note)
    with study_in_memory(table, plan, knowledge_of(table, budget)) as study:
        search(study, pool)
        note()
        best, gain = claimed(study.standing)
        promised = best and gain and [round(number, 4) for number in (truth(best), gain.low, gain.high)]
    return Course(case, runs, points, promised or None)


def judged(gain: Ratio, true: float) -> str:
    """Whether a speed-up that is told holds."""
    if gain.low > 1 >= true:
        return FALSE
    return HOLDS if gain.low <= true <= gain.high else MISSES


# All searches ------------------------------------------------------------------------------------------------------------


def cases(args: argparse.Namespace) -> list[Case]:
    """What to replay, in an order that a cut run is representative of; another seed for each table and budget."""
    cells = list(product(args.budgets, args.tables))
    return [
        Case(table, share, sampler, FIRST_SEED + repeat * len(cells) + number, noise, drift, devices=devices)
        for repeat in range(args.seeds)
        for sampler, devices, noise, drift in product(args.samplers, args.devices, args.noises, args.drifts)
        if sampler == OURS or not drift
        for number, (share, table) in enumerate(cells)
    ]


def read(path: Path) -> list[Course]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Course(Case(**facts.pop("case")), **facts) for facts in map(json.loads, lines)]


def run(path: Path, wanted: Sequence[Case], workers: int) -> None:
    """Replay what is not in the file yet."""
    finished = {course.case for course in read(path)}
    open_cases = [case for case in wanted if case not in finished]
    with path.open("a", encoding="utf-8") as file, ProcessPoolExecutor(workers) as pool:
        for course in pool.map(replayed, open_cases):
            file.write(json.dumps(asdict(course), separators=(",", ":")) + "\n")
            file.flush()


# The page ----------------------------------------------------------------------------------------------------------------


def rows(
    courses: Iterable[Course], names: Sequence[str], cells: Callable[[Sequence[Course]], Iterable[str]]
) -> list[list[str]]:
    """A line for each combination of these fields, in the order of SAMPLERS where that is one: the fields, then the cells."""
    groups: dict[tuple[Any, ...], list[Course]] = {}
    for course in courses:
        groups.setdefault(tuple(getattr(course.case, name) for name in names), []).append(course)

    def order(key: tuple[Any, ...]) -> list[Any]:
        return [SAMPLERS.index(value) if value in SAMPLERS else value for value in key]

    return [[*map(str, key), *cells(groups[key])] for key in sorted(groups, key=order)]


def regrets(place: int) -> Callable[[Sequence[Course]], list[str]]:
    """Cells: how many searches, and at each time the mean of this number of their points and its 95 % quantile."""

    def cells(courses: Sequence[Course]) -> list[str]:
        known = [[float(course.at(time)[place]) for course in courses] for time in TIMES]
        return [f"{len(courses)}", *(f"{fmean(each):.1%} ({np.quantile(each, 0.95):.0%})" for each in known)]

    return cells


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
    quiet = [course for course in courses if not course.case.drift]
    run_as_they_are = [course for course in quiet if course.runs]
    ours = [course for course in courses if course.case.sampler == OURS]
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
        some = [course for course in run_as_they_are if course.case.devices == number]
        table(f"Regret of the answer, {of}, the user's settings fit", some, names, regrets(1), head)
        table(f"Regret of the best probed, {of}, the user's settings fit", some, names, regrets(2), head)
        some = [course for course in quiet if course.case.devices == number and not course.runs]
        table(f"Regret of the answer, {of}, the user's settings do not fit", some, names, regrets(1), head)
    names = ("devices", "drift", "noise")
    table("What a whole search tells", ours, names, promises, promised)
    some = [course for course in quiet if course.case.sampler != OURS]
    table("The same of other samplers, no drift", some, ("sampler", "noise"), promises, promised)
    head = ("searches", *(f"t = {time}" for time in TIMES))
    table("What a search tells that is cut", ours, names, cut_promises, head)
    table("Regret of the answer with drift, all budgets", ours, names, regrets(1), head)
    return lines


COLOURS = dict(zip(SAMPLERS, ("best", "bad", "muted"), strict=True))


def figure(courses: Sequence[Course]) -> str:
    """SVG of the mean regret over time: a panel for each number of devices and noise, a line for each sampler."""
    times = np.arange(0.0, 60.5, 0.5)
    lines: dict[tuple[int, float], dict[str, tuple[str, list[float]]]] = {}
    for devices, noise, sampler in product(DEVICES, NOISES, SAMPLERS):
        some = [
            course
            for course in courses
            if (course.case.devices, course.case.noise, course.case.sampler) == (devices, noise, sampler)
            and course.runs
            and not course.case.drift
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
Time is counted in probes of the baseline. Each probe, round and training for the losses takes
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

A search tells a speed-up if its answer is not what it is compared with: the user's settings or, if these do not fit, the least
change of them that does. It holds if its 95 % interval contains the quotient of the table's speeds. "False" is a speed-up that is
told to be above 1 by its whole interval and is not."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--tables", nargs="+", default=recorded(JUDGES))
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
