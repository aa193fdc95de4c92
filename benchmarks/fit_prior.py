"""Chooses the constants of the cost model's prior by how likely they make what recorded tables show.

python benchmarks/fit_prior.py [NAME …]: those under which these tables are likeliest, by default `tables.TRAINING`, and for each
table the density of its measurements by those of all others. `autotune.sampler.prior` ships the first, rounded. Empirical Bayes:
the evidence of all measurements is maximised over the standard deviations of the effects (Rasmussen and Williams, 2006, section
5.4.1); nothing of a search is looked at. Takes two minutes.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from tables import DESIGN, TRAINING, Table, read_table, recorded  # noqa: E402

from autotune.core import Configuration  # noqa: E402
from autotune.judge.observation import Observation, observed  # noqa: E402
from autotune.sampler.cost_model import CostModel  # noqa: E402
from autotune.sampler.prior import CPU_MEMORY, MICRO_STEP, OPTIMIZER_STEP, Prior  # noqa: E402
from autotune.sampler.warm_start import WarmStart  # noqa: E402

START = Prior(
    micro_step=replace(MICRO_STEP, starting=0.7),
    kernel_s=13e-6,
    optimizer_step=OPTIMIZER_STEP,
    memory=CPU_MEMORY,
    spread=None,
)
OF_MICRO_STEP = ("slope", "walk", "value", "growth", "pair", "computation", "starting")
OF_PRIOR = ("kernel_s", "believed", "unsure", "between")
PULL = 0.1
"""Weight of the squares of how far constants' logarithms move from where they start: what tables do not tell stays."""


def observations(table: Table) -> list[Observation]:
    """Those of the design: all that compute differently."""
    rows = ((one, measured) for one, measured in table.measured.items() if is_design(one))
    return [observed(one, measured) for one, measured in rows]


def is_design(configuration: Configuration) -> bool:
    return all(configuration.values[name] == value for name, value in DESIGN.items())


def model_of(table: Table, prior: Prior) -> CostModel:
    considered = [one for one in table.measured if is_design(one)]
    allowed, estimate = max(table.peaks.values()), lambda one: float(table.estimates[one])
    knowledge = WarmStart(allowed, estimate, table.informs(prior))
    return CostModel(list(dict.fromkeys([table.baseline, *considered])), table.space, knowledge)


def evidence(prior: Prior, table: Table, seen: list[Observation]) -> float:
    return model_of(table, prior).evidence(seen, "micro_step")


def with_constants(logarithms: Sequence[float]) -> Prior:
    """The prior with these logarithms of the constants that are fitted."""
    values = [float(value) for value in np.exp(logarithms)]
    micro_step = replace(START.micro_step, **dict(zip(OF_MICRO_STEP, values, strict=False)))
    return replace(START, micro_step=micro_step, **dict(zip(OF_PRIOR, values[len(OF_MICRO_STEP) :], strict=True)))


def fitted(names: Sequence[str]) -> Any:
    """Logarithms of the constants under which these tables are likeliest."""
    tables = [read_table(name) for name in names]
    known = [(table, observations(table)) for table in tables]
    first = np.log(
        [getattr(START.micro_step, name) for name in OF_MICRO_STEP] + [getattr(START, name) for name in OF_PRIOR]
    )

    def cost(given: Any) -> float:
        pulled = PULL * float(((given - first) ** 2).sum())
        return pulled - sum(evidence(with_constants(given), table, seen) for table, seen in known)

    bounds = [(item - 4.0, item + 4.0) for item in first]
    with threadpool_limits(1):
        return minimize(cost, first, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30}).x


def main() -> None:
    names = sys.argv[1:] or recorded(TRAINING)
    others = [[name for name in names if name != left_out] for left_out in names]
    with ProcessPoolExecutor(2) as workers:
        every, *left_out = workers.map(fitted, [names, *others])
    for name, value in zip((*OF_MICRO_STEP, *OF_PRIOR), np.exp(every), strict=True):
        print(f"{name} {value:.4g}")
    for name, constants in zip(names, left_out, strict=True):
        table = read_table(name)
        seen = observations(table)
        densities = [evidence(with_constants(given), table, seen) / len(seen) for given in (constants, every)]
        print(f"{name}: log density a measurement {densities[0]:.3f} by the others, {densities[1]:.3f} by all")


if __name__ == "__main__":
    main()
