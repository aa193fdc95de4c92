"""Searches replayed on recorded tables: how soon each sampler finds the optimum, and how often it runs out of memory.

python benchmarks/replay.py: all searches on two cores, into reports/replay.md.
python benchmarks/replay.py FILE [--samplers physics …] [--tables …] [--noises …] [--seeds N]: some of them into FILE, one
after the other; what is in FILE is not searched again, so that a run can be cut and split by hand.
python benchmarks/replay.py --report FILE …: the page from these files.

Every sampler goes through the real loop. Ours starts from a prior fitted to the other tables,
once as on a new device, once with what a search on one other table taught. Regret is counted against the best that fits.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean, median

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from fit_prior import read_priors  # noqa: E402
from machine import write_table  # noqa: E402
from tables import ALIKE, BUDGETS, Table, TableProbe, read_table, recorded  # noqa: E402

from autotune.core.measurement import Outcome  # noqa: E402
from autotune.core.stop_reason import StopReason  # noqa: E402
from autotune.core.trial import Trial  # noqa: E402
from autotune.sampler.calibration import Calibration, calibrated, informed  # noqa: E402
from autotune.sampler.physics import WarmStart  # noqa: E402
from autotune.sampler.prior import Prior  # noqa: E402
from autotune.study.loop import open_study, search  # noqa: E402
from autotune.study.objective import best_trial, is_shown, speed_up  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402
from autotune.study.store import read_prospects  # noqa: E402
from autotune.study.study import Study  # noqa: E402

N_TRIALS = 20
OURS, INFORMED = "physics", "physics, device known"
SAMPLERS = (OURS, INFORMED, "tpe", "gp", "random", "brute-force")
SEEDS = {OURS: 10, INFORMED: 1, "gp": 1, "brute-force": 1, "tpe": 2, "random": 2}
NOISES = (None, 0.005, 0.02, 0.1)
"""Between probes of one configuration; None: as recorded, of which others than ours are replayed alone."""
FRESH = 200
"""First seed: no constant was chosen by these."""
DRIFTS = (0.0, 0.02, 0.1)
"""Of the machine, of which ours alone is replayed with others than the first, on FEW seeds, as are tables made `alike`."""
FEW = 3
NEVER = 10**6
MARGIN = 0.01


@dataclass(frozen=True)
class Case:
    """A search to replay. noise: None as recorded. taught: the table of the study that the search knows, or none."""

    table: str
    share: float
    sampler: str
    seed: int
    noise: float | None = None
    taught: str = ""
    drift: float = 0.0


@dataclass(frozen=True)
class Found:
    """What one search came to.

    regret: 1 - speed of the answer / optimum, at least 0. to_one, to_five: probes until one within 1 % and 5 % of the
    optimum was made, the baseline's among them. out_of_memory: the baseline's own not counted; before_fit: of these, before
    anything fitted. probes: in all; rounds: of confirmation. open_share: what an untried one of those really beats the answer
    by. bound: what the end's statement says no untried one beats it by; None: nothing is said. low, high: 95 % interval of how
    many times as fast as the user's settings the answer is, and true: by the table; None: nothing is claimed.
    """

    table: str
    share: float
    sampler: str
    seed: int
    regret: float
    to_one: int
    to_five: int
    probes: int
    out_of_memory: int
    open_share: float
    bound: float | None
    stop_reason: str
    noise: float | None = None
    taught: str = ""
    before_fit: int = 0
    rounds: int = 0
    drift: float = 0.0
    low: float | None = None
    high: float | None = None
    true: float | None = None

    @property
    def case(self) -> Case:
        return Case(self.table, self.share, self.sampler, self.seed, self.noise, self.taught, self.drift)


def knowledge_of(table: Table, budget: int, prior: Prior, past: Sequence[Calibration] = ()) -> WarmStart:
    """What a search on this table starts from, as `autotune.study.warm_start.build_warm_start` has it."""
    own = informed(table.informs(prior), table.space, past)
    return WarmStart(budget, lambda one: float(table.estimates[one]), own)


@contextlib.contextmanager
def study_in_memory(table: Table, plan: Plan, knowledge: WarmStart) -> Iterator[Study]:
    """A new study of the table, in a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield open_study(folder, table.space, plan, knowledge)
    finally:
        shutil.rmtree(folder)


def searched(
    table: Table, plan: Plan, knowledge: WarmStart, noise: float | None = None, drift: float = 0.0
) -> tuple[list[Trial], StopReason, float | None]:
    """The real loop on a table: (trials, statement, share that the untried can still win at the end, None where unknown)."""
    with study_in_memory(table, plan, knowledge) as study:
        stop = search(study, TableProbe(table, knowledge.allowed_bytes, plan.seed, noise, drift))
        gaps = read_prospects(study.folder)
    return study.trials, stop, gaps[max(gaps)].max_gain_if_fits if gaps else None


def taught_by(table: Table, prior: Prior, noise: float | None) -> Calibration:
    """What one search on a table teaches of the device."""
    budget = table.budget(1.0)
    knowledge = knowledge_of(table, budget, prior)
    trials, _, _ = searched(table, Plan(N_TRIALS, "samples_per_second", budget), knowledge, noise)
    return calibrated(table.space, knowledge, trials)


def replayed(table: Table, case: Case, prior: Prior, past: Sequence[Calibration] = ()) -> Found:
    """One search, from its baseline to its confirmed answer."""
    budget = table.budget(case.share)
    plan = Plan(N_TRIALS, "samples_per_second", budget, sampler=case.sampler.partition(",")[0], seed=case.seed)
    trials, stop, gain = searched(table, plan, knowledge_of(table, budget, prior, past), case.noise, case.drift)
    best = best_trial(trials, plan.objective)
    reached = table.speeds[best.configuration] if best else 0.0
    claim = None
    if best is not None and best.number and trials[0].feasible and is_shown(best, trials[0]):
        claim = speed_up(best, trials[0], plan.objective)
    tried = {trial.configuration for trial in trials}
    # As recorded, the speeds of those that were measured once are too uncertain to be judged by.
    least = 1 if case.noise is not None else 2
    judged = [item for item, rows in table.measured.items() if len(rows) >= least and table.peaks[item] <= budget]
    optimum = max(table.speeds[item] for item in judged)
    fitted = [number for number, trial in enumerate(trials) if trial.measurement.feasible]
    ran_out = [n for n, trial in enumerate(trials) if n and trial.measurement.outcome is Outcome.OUT_OF_MEMORY]

    def probes_to(least: float) -> int:
        good = (number + 1 for number in fitted if table.speeds[trials[number].configuration] >= least * optimum)
        return next(good, NEVER)

    return Found(
        **asdict(case),
        regret=max(0.0, 1 - reached / optimum),
        to_one=probes_to(0.99),
        to_five=probes_to(0.95),
        probes=len(trials),
        out_of_memory=len(ran_out),
        before_fit=sum(number < min(fitted, default=NEVER) for number in ran_out),
        rounds=sum(len(trial.confirmations) for trial in trials),
        open_share=max((table.speeds[item] for item in judged if item not in tried), default=0.0) / reached - 1
        if reached
        else np.inf,
        bound=bound_of(stop, gain),
        low=claim and claim.low,
        high=claim and claim.high,
        true=claim and reached / table.speeds[table.space.baseline],
        stop_reason=stop.text,
    )


def bound_of(stop: StopReason, gain: float | None) -> float | None:
    """Share by which untested configurations can still beat the best, as the stop reason says, else by the last trial's gap."""
    if stop.bound is not None:
        return stop.bound
    return gain if gain is not None and gain < np.inf else None


def one_search(case: Case) -> Found:
    past = (lesson(case.taught, case.table, case.noise),) if case.taught else ()
    return replayed(table_named(case.table), case, priors()[case.table.removesuffix(ALIKE)], past)


@cache
def table_named(name: str) -> Table:
    return read_table(name)


@cache
def priors() -> dict[str, Prior]:
    return read_priors()


@cache
def lesson(taught: str, judged: str, noise: float | None) -> Calibration:
    """What a search on a table taught, by a prior that does not know the one to judge."""
    return taught_by(table_named(taught), priors()[judged], noise)


def summary(found: Sequence[Found]) -> list[str]:
    """One line of the table: what these searches came to."""
    regrets = [item.regret for item in found]
    bounded = [item for item in found if item.bound is not None]
    sharp = [item for item in bounded if (item.bound or 0.0) <= MARGIN]
    claims = [(item.low, item.true, item.high) for item in found if item.low and item.true and item.high]
    return [
        f"{len(found)}",
        f"{fmean(item.regret <= 0.01 for item in found):.0%}",
        f"{fmean(regrets):.2%}",
        f"{max(regrets):.1%}",
        _quantiles([item.to_one for item in found]),
        _quantiles([item.to_five for item in found]),
        f"{median(item.probes for item in found):.0f}",
        f"{fmean(item.rounds for item in found):.0f}",
        _quantiles([item.probes + item.rounds for item in found]),
        f"{fmean(item.out_of_memory for item in found):.2f} ({sum(item.before_fit for item in found)})",
        *(
            f"{fmean(item.open_share <= (item.bound or 0.0) for item in several):.0%} of {len(several)}"
            if several
            else "–"
            for several in (sharp, bounded)
        ),
        f"{fmean(low <= true <= high for low, true, high in claims):.0%} of {len(claims)}" if claims else "–",
    ]


HEAD = [
    "searches",
    "within 1 %",
    "mean regret",
    "worst",
    "probes to 1 %",
    "to 5 %",
    "probes in all",
    "rounds",
    "jobs",
    "OOM a search (before a fit)",
    '"at most 1 %" true',
    "bound true",
    "interval covers",
]


def _quantiles(numbers: Sequence[int]) -> str:
    low, high = (np.quantile(numbers, q, method="higher") for q in (0.5, 0.95))
    return f"{_count(low)} ({_count(high)})"


def _count(number: float) -> str:
    return "never" if number >= NEVER else f"{number:.0f}"


def rows(found: Iterable[Found], *names: str) -> Iterable[list[str]]:
    """A line for each combination of these fields."""
    groups: dict[tuple[str, ...], list[Found]] = {}
    for item in found:
        groups.setdefault(tuple(str(getattr(item, name)) for name in names), []).append(item)
    for key in sorted(groups):
        yield [*key, *summary(groups[key])]


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines)]


NOTES = """\
Each search has at most 20 probes, the baseline's among them, and ends with confirmation; regret is 1 - speed of the answer /
speed of the best that fits. "Probes to": median (95 % quantile) until a configuration within 1 % or 5 % of the optimum was
probed. Out-of-memories of the baseline itself are not counted: nobody chose it. Budgets are shares of the way from the least to
the highest peak of a table. "At most 1 %": searches that ended saying that nothing untried beats their answer by more than 1 %,
what may fit against expectation counted; "bound": all that named any bound.

Noise: None is as recorded, judged among those that were measured again in three interleaved rounds. A number is the deviation
between probes of one configuration around its pooled speed, with the steps' own deviations in proportion (recorded: 9 % between
probes, 8 % between steps), judged among all. What single probes erred by when the table was recorded is there taken for the
truth: configurations that compute the same differ by 4 % (those measured again) to 10 %, whatever the noise, as no quiet device
would have it. "Alike" leaves that out: equal computations take equally long, and so do equal optimizers.

"Device known": every ordered pair of tables; a search on the one, of all its memory, taught the one on the other.

How the constants were chosen: the prior's deviations, the offset of memory and the start of a kernel by the evidence of all rows
of the *other* tables (benchmarks/fit_prior.py); level, slope and walk, and what a setting's value changes of a micro-step,
not by tables. The spread of rest and computation by three tables fitted alone (encoder, decoder, encoder-decoder); noise may be
twice or half of what steps show, an assumption. The kernel's new term, the risk and both rules of the end were developed on
these three tables and then judged on vision and mixture-of-experts, which showed one error: where what is nearly sure to fit
was not worth a probe, what is a little less sure was not asked. MODELS_DIFFER is of all tables, rounded up. CONFIDENCE = 0.95 by
what is asked: a statement that is true in 95 of 100. P_FIT_CERTAIN = 0.95 and P_FIT_LIKELY = 0.8 were looked at on the same
three. P_FIT_RISKY = 0.4 and RISKS = 2 by what is asked: at most 0.3 out-of-memories a search. UNSURE = 0.5 is not free of its
table: mixture-of-experts showed that an expected change may not come (bf16 wins nothing there).

What is missed, and why: a quiet search ends after 9 probes in the median, not 8: once the best is probed (after 4 where likes
are alike) each other optimizer, number of workers and micro-batch size that may be better by more than 1 % is probed once.
With 2 % between probes most searches that are not within 1 % had probed the optimum and confirmed another: the best differ by
1.1 % in vision at the tightest budget and in mixture-of-experts at the second, which a few rounds do not tell apart, and of
those that are not told apart and differ by less than 1 % the one with the fewest changes of the baseline is the answer
(that costs 0.04 % of the speed on average). In encoder-decoder at the tightest budget the answer's twin with workers,
4 % faster, is never tried and called slower with 95 % confidence: where workers were tried before, they had cost 8
%, both by what single probes erred by. "Likely to fit" and "not more than 1 %" is false there at 0.5 % in all three of its
searches, and in no other of the 44 that said so. Searches of one table and budget differ by their noise alone, so that at 0.5
% three seeds are hardly more than one. As recorded, the rounds that judge are those that a search confirms with, so that one
which runs all of them is flattered. Where probes differ by 9 % and more, a search that knows its device ends two probes sooner
and is worse for it (regret 3.3 % against 2.2 % at 10 %): one search by such probes is believed too much.

The tables' probes run on one thread and give back what they free (benchmarks/record_table.py), so that a peak errs by
1 MiB of 30 to 200 and a speed by 7 to 10 % from process to process; with two threads and the heap as it comes it was 10 to 50 MiB
and 10 to 13 %, and a search near a limit mostly luck (reports/LOG.md).""".splitlines()


def cases(args: argparse.Namespace) -> list[Case]:
    """What to replay, in an order that a cut run is representative of."""
    wanted = [
        Case(name, share, sampler, FRESH + seed, noise, taught, drift)
        for seed, sampler, noise, drift, name, share in product(
            range(max(SEEDS.values())), args.samplers, args.noises, args.drifts, args.tables, BUDGETS
        )
        if seed < (args.seeds or SEEDS[sampler])
        and (seed < FEW or not (drift or name.endswith(ALIKE)))
        and (not drift or (sampler == OURS and noise is not None and not name.endswith(ALIKE)))
        and (noise is None or sampler in (OURS, INFORMED))
        and (not name.endswith(ALIKE) or (sampler == OURS and noise in (0.005, 0.02)))
        for taught in ([other for other in recorded() if other != name] if sampler == INFORMED else [""])
    ]
    return list(dict.fromkeys(wanted))


def read(path: Path) -> list[Found]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Found(**json.loads(line)) for line in lines]


def run(path: Path, wanted: Sequence[Case], workers: int) -> None:
    """Replay what is not in the file yet."""
    finished = {found.case for found in read(path)}
    open_cases = [case for case in wanted if case not in finished]
    with path.open("a", encoding="utf-8") as file, ProcessPoolExecutor(workers) as pool:
        searches = map(one_search, open_cases) if workers == 1 else pool.map(one_search, open_cases, chunksize=4)
        for found in searches:
            file.write(json.dumps(asdict(found)) + "\n")
            file.flush()


def report(found: Sequence[Found]) -> list[str]:
    found = [replace(item, taught="") for item in found]
    ours, quiet = (
        [item for item in found if item.sampler == OURS and item.table.endswith(ALIKE) == is_alike and not item.drift]
        for is_alike in (False, True)
    )
    drifting = [item for item in found if item.sampler == OURS and item.noise and not item.table.endswith(ALIKE)]
    informed = [item for item in found if item.sampler == INFORMED]
    others = [item for item in found if item.noise is None]
    return [
        *markdown(["noise", *HEAD], rows(ours, "noise")),
        "",
        *markdown(["noise", "drift", *HEAD], rows(drifting, "noise", "drift")),
        "",
        *markdown(["alike: noise", *HEAD], rows(quiet, "noise")),
        "",
        *markdown(["device known: noise", *HEAD], rows(informed, "noise")),
        "",
        *markdown(["noise", "table", *HEAD], rows(ours, "noise", "table")),
        "",
        *markdown(["noise", "budget", *HEAD], rows(ours, "noise", "share")),
        "",
        *markdown(["sampler", *HEAD], rows(others, "sampler")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--tables", nargs="+", default=[*recorded(), *(name + ALIKE for name in recorded())])
    parser.add_argument(
        "--noises", nargs="+", default=NOISES, type=lambda text: None if text == "None" else float(text)
    )
    parser.add_argument("--drifts", nargs="+", type=float, default=DRIFTS)
    parser.add_argument("--seeds", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = args.files or [Path(folder) / "all.jsonl"]
        if not args.report:
            run(files[0], cases(args), workers=1 if args.files else 2)
        found = [item for path in files for item in read(path)]
    if args.report or not args.files:
        lines = [*report(found), "", *NOTES]
        write_table(ROOT / "reports" / "replay.md", "Searches replayed on recorded tables", lines)


if __name__ == "__main__":
    main()
