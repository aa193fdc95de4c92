"""Chooses the constants of the cost model's prior by how likely they make what recorded tables show.

python benchmarks/fit_prior.py --models: how much a value's effect differs from table to table (calibration.MODELS_DIFFER).
python benchmarks/fit_prior.py: for each table those fitted to all the others, and those fitted to all of them, into
tests/data/tables/priors.json. Of the latter `autotune.sampler.prior` ships what times and their noise are, rounded; its kernel_s
and CPU_MEMORY are others, of several threads and of the heap as it comes. Empirical Bayes: the evidence of all rows is maximised
over the standard deviations of the effects (Rasmussen and Williams, 2006, section 5.4.1); nothing of a search is looked at.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from tables import FOLDER, Table, read_table, recorded  # noqa: E402

from autotune.sampler.cost_model import CostModel  # noqa: E402
from autotune.sampler.kernel import EffectKernel  # noqa: E402
from autotune.sampler.observation import Observation, observed  # noqa: E402
from autotune.sampler.parameters import all_values  # noqa: E402
from autotune.sampler.prior import CPU_MEMORY, MICRO_STEP, OPTIMIZER_STEP, MemoryPrior, Prior  # noqa: E402

PRIORS = FOLDER / "priors.json"
OFFSET_MIB = 30.0
START = Prior(
    micro_step=replace(MICRO_STEP, growth=0.02, pair=0.02, rest=0.02, computation=0.08),
    optimizer_step=replace(OPTIMIZER_STEP, value=0.5, growth=0.02, pair=0.02, rest=0.05),
    memory=replace(CPU_MEMORY, size=0.03, rest=0.03, mean_offset_bytes=OFFSET_MIB * 2.0**20),
    spread=None,
)
TIMES = ("growth", "pair", "rest")
WIDEST = 4.0
"""How far a constant's logarithm may move from where it starts (an offset: in tens of MiB)."""


def fitted(tables: Sequence[Table]) -> Prior:
    """The prior under which these tables are likeliest."""
    observations = [[observed(c, m) for c, known in table.measured.items() for m in known] for table in tables]
    prior = START
    of_parts = {
        "micro_step": (("computation",), ("between", "own", "kernel_s")),
        "optimizer_step": (("value",), ("optimizer_noise",)),
    }
    for part, (effects, names) in of_parts.items():
        prior = _fitted_times(prior, tables, observations, part, (*TIMES, *effects), names)
    return _fitted_memory(prior, tables, observations)


def _fitted_times(
    prior: Prior,
    tables: Sequence[Table],
    observations: list[list[Observation]],
    part: str,
    effects: tuple[str, ...],
    more: tuple[str, ...],
) -> Prior:
    def at(given: Sequence[float]) -> Prior:
        known = dict(zip((*effects, *more), np.exp(given), strict=True))
        likeness = replace(getattr(prior, part), **{name: float(known[name]) for name in effects})
        return replace(prior, **{part: likeness}, **{name: float(known[name]) for name in more})

    first = [getattr(getattr(prior, part), name) for name in effects] + [getattr(prior, name) for name in more]
    return at(_best(lambda given: evidence(at(given), tables, observations, part), np.log(first)))


def _fitted_memory(prior: Prior, tables: Sequence[Table], observations: list[list[Observation]]) -> Prior:
    names = ("offset_bytes", "value_bytes", "sample_bytes", "size", "rest", "noise_bytes")

    def at(given: Sequence[float]) -> Prior:
        *deviations, offset = given
        found = {name: float(np.exp(item)) for name, item in zip(names, deviations, strict=True)}
        found["mean_offset_bytes"] = float(offset) * 10 * 2.0**20
        return replace(prior, memory=replace(prior.memory, **found))

    first = [float(np.log(getattr(prior.memory, name))) for name in names] + [OFFSET_MIB / 10]
    return at(_best(lambda given: evidence(at(given), tables, observations, "memory"), np.array(first)))


def _best(value: Callable[[Sequence[float]], float], first: Any) -> Any:
    """Where the evidence is highest; a weak pull keeps what the tables do not tell where it was."""

    def cost(given: Any) -> float:
        return -value(given) + 0.05 * float(((given - first) ** 2).sum())

    bounds = [(item - WIDEST, item + WIDEST) for item in first]
    return minimize(cost, first, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40}).x


def evidence(prior: Prior, tables: Sequence[Table], observations: list[list[Observation]], part: str) -> float:
    return sum(model_of(table, prior).evidence(seen, part) for table, seen in zip(tables, observations, strict=True))


def model_of(table: Table, prior: Prior, budget: int | None = None) -> CostModel:
    space = table.space
    return CostModel(
        list(table.measured),
        all_values(space),
        space.baseline,
        table.informs(prior),
        lambda one: float(table.estimates[one]),
        budget or max(table.peaks.values()),
    )


FITTED = ("micro_step", "optimizer_step", "between", "own", "optimizer_noise", "memory", "kernel_s")


def to_dict(prior: Prior) -> dict[str, Any]:
    return {name: value for name, value in asdict(prior).items() if name in FITTED}


def from_dict(data: Mapping[str, Any]) -> Prior:
    parts = {
        "micro_step": EffectKernel(**data["micro_step"]),
        "optimizer_step": EffectKernel(**data["optimizer_step"]),
        "memory": MemoryPrior(**data["memory"]),
    }
    return Prior(**{**data, **parts})


def read_priors() -> dict[str, Prior]:
    """`all`, and the name of each table: fitted without it."""
    return {name: from_dict(load) for name, load in json.loads(PRIORS.read_text(encoding="utf-8")).items()}


def fitted_without(name: str) -> Prior:
    with threadpool_limits(1):  # two fits at a time
        return fitted([read_table(other) for other in recorded() if other != name])


def models_differ(names: Sequence[str]) -> dict[tuple[str, Any], list[float]]:
    """(setting, value) -> standard deviation over these tables of how far its effect is from the expected one."""
    told: dict[tuple[str, Any], list[Any]] = {}
    for name in names:
        table = read_table(name)
        rows = [observed(c, m) for c, known in table.measured.items() for m in known]
        for setting, values in model_of(table, read_priors()["all"]).learned(rows).items():
            for value, learned in values.items():
                told.setdefault((setting, value), []).append(learned.deviation)
    return {key: np.std(several, 0, ddof=1).tolist() for key, several in told.items()}


def main() -> None:
    if "--models" in sys.argv:
        differences = models_differ(recorded())
        for (setting, value), deviations in differences.items():
            print(setting, value, *(f"{deviation:.3g}" for deviation in deviations))
        print("all", *(f"{deviation:.3g}" for deviation in np.sqrt(np.mean(np.square([*differences.values()]), 0))))
        return
    names = [*recorded(), "all"]
    with ProcessPoolExecutor(2) as workers:
        found = dict(zip(names, workers.map(fitted_without, names), strict=True))
    PRIORS.write_text(json.dumps({name: to_dict(prior) for name, prior in found.items()}, indent=1) + "\n")
    for name, prior in found.items():
        print(name, prior)


if __name__ == "__main__":
    main()
