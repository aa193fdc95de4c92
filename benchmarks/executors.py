"""Searches on several devices, replayed on recorded tables in virtual time: wall clock, probes, regret, out-of-memories.

python benchmarks/executors.py [--seeds N] [--devices 1 2 4 8] [--tables …] [--noise 0.005] FILE: into FILE, a line a search.
python benchmarks/executors.py --report FILE …: the tables of these files.

The real loop and the real confirmation run on a pool whose devices take the recorded seconds of each probe. `alike`: all devices
are as fast; `differ`: speeds with a standard deviation of 4 %, at most 8 % from the mean; `slow`: the last one is 15 % slow.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from fit_prior import read_priors  # noqa: E402
from replay import N_TRIALS, knowledge_of, study_in_memory  # noqa: E402
from tables import BUDGETS, Table, TableProbe, quieter, read_table, recorded  # noqa: E402

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.measurement import Measurement, Outcome  # noqa: E402
from autotune.executors.pool import Pool, Work, carried_out  # noqa: E402
from autotune.probe import Probe, ProbeOptions  # noqa: E402
from autotune.study.loop import search  # noqa: E402
from autotune.study.objective import best_trial  # noqa: E402
from autotune.study.plan import Plan  # noqa: E402

WORLDS = ("alike", "differ", "slow")


class VirtualPool(Pool):
    """Jobs on devices in virtual time: of those that run, the one whose probes took the fewest seconds ends next."""

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        super().__init__({name: self._timed(probe) for name, probe in probes.items()})
        self.clock = self._spent = 0.0
        self._ends: list[tuple[float, str, Any, BaseException | None]] = []

    def _timed(self, probe: Probe) -> Probe:
        def measured(configuration: Configuration, options: ProbeOptions) -> Measurement:
            measurement = probe(configuration, options)
            self._spent += measurement.probe_seconds
            return measurement

        return measured

    def _begin(self, device: str, work: Work, probe: Probe) -> None:
        self._spent = 0.0
        value, error = carried_out(work, probe)
        self._ends.append((self.clock + self._spent, device, value, error))

    def _next(self) -> tuple[str, Any, BaseException | None]:
        first = min(self._ends, key=lambda end: end[:2])
        self._ends.remove(first)
        self.clock, device, value, error = first
        return device, value, error


def speeds_of(world: str, count: int, seed: int) -> list[float]:
    """Factor of each device's speed."""
    rng = random.Random(f"{world} {seed}")
    if world == "differ":
        return [min(1.08, max(0.92, rng.gauss(1.0, 0.04))) for _ in range(count)]
    return [1.0] * (count - 1) + [0.85 if world == "slow" and count > 1 else 1.0]


def on_device(
    table: Table,
    budget: int,
    seed: int,
    noise: float,
    factor: float,
    device: int,
    drift: float = 0.0,
    clock: Callable[[], float] | None = None,
) -> Probe:
    """The table's probe on a device of this speed, with noise and drift of its own."""
    probe = TableProbe(table, budget, 1000 * seed + device, noise, drift, clock)

    def measured(configuration: Configuration, options: ProbeOptions) -> Measurement:
        # The recordings were disturbed by other work; simulated devices are quiet and repeat no probe for it.
        measurement = replace(probe(configuration, options), observed_warnings=())
        if measurement.outcome is not Outcome.COMPLETED or factor == 1.0:
            return measurement
        speed = float(measurement.samples_per_second or 0.0) * factor
        return replace(measurement, steps=quieter(measurement, speed, 1.0))

    return measured


def replayed(
    name: str, share: float, seed: int, count: int, world: str, noise: float, corrected: bool
) -> dict[str, Any]:
    """One search."""
    table, prior = read_table(name), read_priors()[name]
    budget = table.budget(share)
    factors = speeds_of(world, count, seed)

    def clock() -> float:
        return pool.clock

    pool = VirtualPool(
        {
            f"d{device}": on_device(table, budget, seed, noise, factor, device, clock=clock)
            for device, factor in enumerate(factors)
        }
    )
    plan, knowledge = (
        Plan(N_TRIALS, "samples_per_second", budget, seed=seed),
        knowledge_of(table, budget, prior),
    )
    with study_in_memory(table, plan, knowledge) as study:
        if corrected:
            search(study, pool)
        else:
            with mock.patch("autotune.study.fleet.device_effects", return_value={}):
                search(study, pool)
    best = best_trial(study.trials, plan.objective)
    reached = table.speeds[best.configuration] if best else 0.0
    optimum = max(table.speeds[item] for item in table.measured if table.peaks[item] <= budget)
    ran_out = sum(trial.measurement.outcome is Outcome.OUT_OF_MEMORY for trial in study.trials[1:])
    return {
        "table": name,
        "share": share,
        "seed": seed,
        "devices": count,
        "world": world,
        "noise": noise,
        "corrected": corrected,
        "seconds": pool.clock,
        "probes": len(study.trials),
        "rounds": sum(len(trial.confirmations) for trial in study.trials),
        "regret": max(0.0, 1 - reached / optimum),
        "out_of_memory": ran_out,
        "named": sorted(pool.left_out),
    }


def report(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: a row for each world, number of devices and correction."""
    alone = {(line["table"], line["share"], line["seed"]): line for line in lines if line["devices"] == 1}
    head = ["world", "devices", "corrected", "searches", "wall clock / of one", "probes", "rounds", "mean regret"]
    head += ["OOM a search", "slow one named", "others named"]
    rows = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for key in sorted({(line["world"], line["devices"], line["corrected"]) for line in lines}):
        group = [line for line in lines if (line["world"], line["devices"], line["corrected"]) == key]
        pairs = [(line, alone.get((line["table"], line["share"], line["seed"]))) for line in group]
        ratios = [line["seconds"] / one["seconds"] for line, one in pairs if one]
        slow = f"d{key[1] - 1}"
        named = fmean(slow in line["named"] for line in group) if key[0] == "slow" else None
        others = fmean(any(name != slow or key[0] != "slow" for name in line["named"]) for line in group)
        cells = [
            key[0],
            key[1],
            key[2],
            len(group),
            f"{median(ratios):.2f} (mean {fmean(ratios):.2f})" if ratios else "–",
        ]
        cells += [f"{fmean(line[name] for line in group):.1f}" for name in ("probes", "rounds")]
        cells += [
            f"{fmean(line['regret'] for line in group):.2%}",
            f"{fmean(line['out_of_memory'] for line in group):.2f}",
        ]
        cells += ["–" if named is None else f"{named:.0%}", f"{others:.0%}"]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS))
    parser.add_argument("--noise", type=float, default=0.005)
    parser.add_argument("--tables", nargs="+", default=recorded())
    given = parser.parse_args()
    if not given.report:
        with given.files[0].open("a", encoding="utf-8") as file:
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                table, share = given.tables[seed % len(given.tables)], BUDGETS[seed // len(given.tables) % len(BUDGETS)]
                for count in given.devices:
                    for world in given.worlds if count > 1 else ("alike",):
                        for corrected in (True, False) if world != "alike" else (True,):
                            line = replayed(table, share, seed, count, world, given.noise, corrected)
                            print(json.dumps(line), file=file, flush=True)
    print("\n".join(report([json.loads(row) for path in given.files for row in path.read_text().splitlines()])))


if __name__ == "__main__":
    main()
