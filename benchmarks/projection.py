"""Projections against measured ranks: python benchmarks/projection.py [CASES], as root.

A training of one rank is measured and projected to several ranks and a bandwidth; then the same training is measured on these
ranks, over a loopback that `tc` holds to that bandwidth, in a network namespace of its own. About ten minutes on an idle machine;
writes reports/projection.md.

A device is a core here, or half of one: as many trainings of one rank as there will be ranks are measured at the same time,
each on its share of the cores, so that one rank has no more of the machine than each of several. All ranks send over the one
loopback: its rate is that of the link times the ranks.
"""

import itertools
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from machine import write_table  # noqa: E402

from autotune.commands.project.links import EFFICIENCY  # noqa: E402
from autotune.commands.project.run import ProjectedRun, configuration_on, project  # noqa: E402
from autotune.core import Configuration, Interval, Measurement, Outcome, Trial  # noqa: E402
from autotune.core.measurement import pooled  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.slot import Slot  # noqa: E402
from autotune.core.stop_reason import StopKind, StopReason  # noqa: E402
from autotune.core.units import format_interval  # noqa: E402
from autotune.executors.local import LocalHost  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.probe.order import Timing  # noqa: E402
from autotune.probe.queries import read_environment, read_workload  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.study.result import SearchResult  # noqa: E402

SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**18),
}
"""Variables of every probe: a thread each, and memory that goes back at once."""

SETTINGS = {
    "checkpointing": "none",
    "precision": "fp32",
    "optimizer": "adamw_torch_fused",
    "workers": 0,
    "data_parallel_size": 1,
}
TIMING = Timing(untimed_least=3, untimed_most=5, timed_least=8, timed_most=10, seconds=20.0)
LIMIT, DEADLINE_S = 4 * 2**30, 300.0
BANDWIDTHS = (0.05, 0.15, 0.5)
"""GB/s that each rank sends."""
ROUNDS = 2
HEAD = [
    "model",
    "ranks",
    "sizes on one",
    "sizes on each",
    "GB/s",
    "one rank",
    "projected",
    "measured",
    "inside",
    "limit",
]


@dataclass(frozen=True)
class Work:
    """A training on one rank, and the ranks that it is projected to."""

    model: str
    micro: int
    accumulation: int
    ranks: int
    tokens: int = 64

    def single(self, micro: int = 0) -> Configuration:
        """On one rank, with another micro-batch size if there is one."""
        return Configuration.exact(self.micro * self.accumulation, micro or self.micro, SETTINGS)


WORKS = (
    Work("gpt2-mini", 4, 4, 2),
    Work("bert-mini", 4, 4, 2),
    Work("gpt2-mini", 8, 1, 2),  # the micro-batch becomes smaller
    Work("gpt2-mini", 4, 4, 4),
)


class Bench:
    """Probes of a work on hosts of one share of the cores each, and on all cores."""

    def __init__(self, work: Work, folder: Path, hosts: list[LocalHost]) -> None:
        self.work, self._number = work, itertools.count()
        self.request = tuning_request(
            work.model,
            work.micro * work.accumulation,
            sequence_length=work.tokens,
            device="cpu",
            output_dir=str(folder),
        )
        self.environment, _ = read_environment(hosts[0], self.request, None)
        self.workload = read_workload(hosts[0], self.request)
        self._probes = [
            LiveProbe(host, self.environment, self.workload, {}, LIMIT, self._folder(folder), timings=(TIMING, TIMING))
            for host in hosts
        ]

    def _folder(self, folder: Path) -> Callable[[Slot], Path]:
        return lambda slot: folder / f"{self.work.model}-{slot.number}"

    def _measured(self, probe: LiveProbe, configuration: Configuration) -> Measurement:
        measurement = probe(configuration, ProbeOptions(Slot(next(self._number), 1), DEADLINE_S))
        assert measurement.outcome is Outcome.COMPLETED, measurement.reason
        return measurement

    def alone(self, configuration: Configuration) -> list[Measurement]:
        """As many trainings of one rank at the same time as there will be ranks."""
        with ThreadPoolExecutor(self.work.ranks) as pool:
            return list(
                pool.map(lambda probe: self._measured(probe, configuration), self._probes[1 : self.work.ranks + 1])
            )

    def together(self, bandwidth: float) -> Measurement:
        """The training on all ranks over a link of this many GB/s."""
        configuration = configuration_on(self.work.ranks, self.work.single())
        assert configuration is not None
        throttle(bandwidth * self.work.ranks)
        return self._measured(self._probes[0], configuration)

    def projected(self, alone: dict[Configuration, list[Measurement]], bandwidth: float) -> ProjectedRun:
        """From what was measured of one rank; only the work's own configuration can be the answer."""
        trials = [
            Trial(number, configuration, rounds[0], tuple(rounds), "of the cost model" if number else "")
            for number, (configuration, rounds) in enumerate(alone.items())
        ]
        stop = StopReason(StopKind.BUDGET, {"n_trials": len(trials)})
        result = SearchResult(self.request, self.workload, self.environment, trials, stop, LIMIT, LIMIT)
        return project(result, bandwidth, self.work.ranks).runs[-1]


def throttle(gigabytes_per_second: float) -> None:
    """Hold the loopback to this rate."""
    rate = f"{gigabytes_per_second * 8e9:.0f}bit"
    command = ["tc", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", rate, "burst", "256kb", "limit", "64mb"]
    subprocess.run(command, check=True)


def cases(work: Work, bandwidths: tuple[float, ...], folder: Path, hosts: list[LocalHost]) -> Iterator[list[str]]:
    """A row of the table for each bandwidth."""
    bench = Bench(work, folder, hosts)
    on_ranks = configuration_on(work.ranks, work.single())
    assert on_ranks is not None
    sizes = dict.fromkeys([work.micro, on_ranks.micro_batch_size])
    alone: dict[Configuration, list[Measurement]] = {work.single(micro): [] for micro in sizes}
    together: dict[float, list[Measurement]] = {bandwidth: [] for bandwidth in bandwidths}
    for number in range(ROUNDS):
        for configuration, rounds in alone.items():
            rounds += bench.alone(configuration)
        for bandwidth in bandwidths if number % 2 == 0 else reversed(bandwidths):
            together[bandwidth].append(bench.together(bandwidth))
    for bandwidth, rounds in together.items():
        run, speed = bench.projected(alone, bandwidth), pooled(rounds).samples_per_second
        assert speed is not None
        low, high = run.samples_per_second
        yield [
            work.model,
            str(work.ranks),
            f"{work.micro} x {work.accumulation}",
            f"{on_ranks.micro_batch_size} x {on_ranks.gradient_accumulation_steps}",
            f"{bandwidth:g}",
            _text(pooled(alone[work.single()]).samples_per_second),
            f"{low:.2f} to {high:.2f}",
            _text(speed),
            "yes" if low <= speed <= high else f"no: {speed / (low if speed < low else high):.2f} of the nearer end",
            run.limit.name.lower().replace("_", " ") if run.limit else "-",
        ]


def _text(speed: Interval | None) -> str:
    return "-" if speed is None else format_interval(speed, speed.low, speed.high)


def main(most: int) -> None:
    os.environ.update(SURROUNDINGS)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    cores = sorted(os.sched_getaffinity(0))
    works = [work for work in WORKS if work.ranks <= 2 * len(cores)]
    wanted = list(itertools.product(works, BANDWIDTHS))[:most]
    shares = [cores, *([cores[rank % len(cores)]] for rank in range(max(work.ranks for work, _ in wanted)))]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        hosts = [LocalHost(cores=share) for share in shares]
        for host in hosts:
            stack.callback(host.hosts.close)
        for work in dict.fromkeys(work for work, _ in wanted):
            bandwidths = tuple(bandwidth for of, bandwidth in wanted if of == work)
            for row in cases(work, bandwidths, Path(scratch) / f"{work.model}-{work.micro}-{work.ranks}", hosts):
                print(row, flush=True)
                rows.append(row)
    write_table(ROOT / "reports" / "projection.md", "Projections against measured ranks", report(rows))


def report(rows: list[list[str]]) -> list[str]:
    """The table, how many cases are inside, and what was measured."""
    inside, (low, high) = [row[8] for row in rows].count("yes"), EFFICIENCY
    ends = [tuple(map(float, row[6].split(" to "))) for row in rows]
    width = fmean(highest / lowest for lowest, highest in ends)
    off = [
        float(row[7].split()[0]) / math.sqrt(least * most) - 1 for row, (least, most) in zip(rows, ends, strict=True)
    ]
    return [
        *(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows)),
        "",
        f"Inside the projected interval: {inside} of {len(rows)}. Its upper end is {width:.2f} times the lower one on average.",
        f"The measured speed differs from its middle, the geometric mean of both ends, by {median(map(abs, off)):.1%} (median),",
        f"and by {max(map(abs, off)):.0%} at most.",
        "",
        f"Speeds in samples / second, fp32, {ROUNDS} rounds. The projection takes {low:.0%} to {high:.0%} of the bandwidth, and",
        "between no and complete overlap. The ranks exchange by gloo, over a loopback with a token bucket (`tc` tbf), a thread",
        "each. Of four ranks on two cores each has half a core, and so had the one rank: as many trainings of one rank as there",
        "are ranks were measured at the same time. Limit: what costs most in the projected step.",
    ]


if __name__ == "__main__":
    if "--inside" not in sys.argv:
        os.execvp("unshare", ["unshare", "--net", sys.executable, __file__, "--inside", *sys.argv[1:]])
    main(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
