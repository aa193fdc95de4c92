"""The `physics` sampler: it proposes by the cost model."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from autotune.core import Configuration, Outcome, Trial, Value
from autotune.memory.peak import MemoryPeak
from autotune.sampler.acquisition import P_FIT_CERTAIN, Proposal, propose
from autotune.sampler.candidates import POOL, pool, stages
from autotune.sampler.cost_model import CostModel
from autotune.sampler.gp import Numbers
from autotune.sampler.observation import Observation, observed
from autotune.sampler.parameters import all_values
from autotune.sampler.prior import MemoryPrior, Prior
from autotune.space.dominance import implied_by
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, SETTINGS, Work
from autotune.space.utilization import Arithmetic

DRAWS = 2000
"""Draws of the speeds of trials, from which what one may win over another is told within 3 %."""

PERHAPS = 0.25
"""Probability of being as fast from which on a configuration with fewer changes of the user's settings is worth its probe."""

DeviceEffects = Mapping[str, tuple[float, float]]
"""Device -> (mean, standard deviation) of the logarithm of its speed, against all devices'."""

NO_EFFECTS: DeviceEffects = {}

ASSUMED_SHARE = 0.1
"""Of the allowed memory: the estimate of every configuration without one."""


@dataclass(frozen=True)
class WarmStart:
    """What is known before the first probe of a search."""

    allowed_bytes: int  # of a peak
    estimate: Callable[[Configuration], float] | None = None  # a configuration's peak bytes
    prior: Prior = field(default_factory=Prior)  # of the costs
    objective: str = "samples_per_second"
    margin: float = 0.01  # share of a gain that is not worth a probe
    unknown: str = ""  # what could not be determined, and why
    core_probes: int = 0  # for a space's core settings before the others (`candidates.stages`)
    training_steps: int | None = None  # of the run to tune for, over which the seconds of its start are spread
    untouched_bytes: int = 0  # that count against the limit and are not part of a peak
    peak: Callable[[Configuration], MemoryPeak | None] = lambda configuration: None  # the estimate by use, where traced
    arithmetic: Arithmetic = field(default_factory=Arithmetic)  # of the model and the device


@dataclass(frozen=True)
class Expected:
    """What all probes and rounds say together of the trials that fit."""

    speeds: Mapping[int, Numbers]  # trial number -> (DRAWS,) samples / second, drawn together: with their differences
    noise: float  # share by which two processes of one configuration differ (standard deviation)


class PhysicsSampler:
    """Proposes the configuration whose probe has the largest expected gain a second.

    Of a space of more than 5,000 configurations it considers those near the best, near the prior's best, and random ones.
    """

    duplicates = 0

    def __init__(self, space: SearchSpace, knowledge: WarmStart, seed: int = 0) -> None:
        self.space, self.knowledge, self.seed = space, knowledge, seed
        self._model: CostModel | None = None
        self._considered: tuple[Sequence[Configuration], Sequence[SearchSpace]] = ((), (space,))

    def propose(
        self,
        trials: Sequence[Trial],
        running: Sequence[Configuration] = (),
        devices: DeviceEffects = NO_EFFECTS,
        risks: int = 0,
        probes_left: float = math.inf,
    ) -> Proposal:
        """The next probe after these trials, confirmations included; running ones count with their expected result.

        devices: as in `each_measured`. risks: how many tries of what may not fit are left. probes_left: that there is time and
        budget for.
        """
        observations = [observed(trial.configuration, trial.final) for trial in trials]
        failed = [trial for trial in trials if trial.measurement.outcome is not Outcome.COMPLETED]
        if not observations and not running:
            return Proposal(self.space.baseline, np.inf, np.inf, self.space.size)
        warm_start = self.knowledge
        needed = [self.space.baseline, *(seen.configuration for seen in observations), *running]
        with _on_one_thread():
            for parts in stages(self.space, observations, warm_start.core_probes, warm_start.objective):
                proposal = propose(
                    self._model_with(needed, _near(observations), parts),
                    observations,
                    lambda configuration: implied_by(configuration, failed) is not None,
                    warm_start.objective,
                    running,
                    self.seed + len(observations),
                    warm_start.margin,
                    each_measured(trials, devices),
                    risks,
                    probes_left,
                )
                if proposal.configuration is not None and proposal.can_win(warm_start.margin):
                    break
        return proposal

    def simpler(
        self, trials: Sequence[Trial], configuration: Configuration, devices: DeviceEffects = NO_EFFECTS
    ) -> Configuration | None:
        """This configuration with settings back at the user's values, as many as may well cost no more than the margin together
        (PERHAPS); None if that is measured already, or each one counts."""
        base, simplest = self.space.baseline.values, configuration
        tried = [trial.configuration for trial in trials]
        failed = [trial for trial in trials if trial.measurement.outcome is not Outcome.COMPLETED]

        def without(setting: str) -> Configuration:
            return self.space.configuration({**simplest.values, setting: base[setting]})

        def as_fast(candidate: Configuration) -> float:
            """Probability that it is; 0 if it may not fit."""
            model = self._model_with([self.space.baseline, *tried, candidate], *self._considered)
            costs = model.costs(each_measured(trials, devices))
            place, own = model.place[candidate], model.place[configuration]
            if costs.fits[place] < P_FIT_CERTAIN:
                return 0.0
            log_steps, _ = costs.drawn(np.array([own, place], np.intp), DRAWS, self.seed)
            return float((log_steps[:, 1] - log_steps[:, 0] <= math.log1p(self.knowledge.margin)).mean())

        changed = [name for name, value in configuration.settings if base.get(name, value) != value]
        while changed:
            candidates = {name: without(name) for name in changed}
            likely = {
                name: as_fast(candidate)
                for name, candidate in candidates.items()
                if candidate in self.space and implied_by(candidate, failed) is None
            }
            first = max(likely, key=likely.__getitem__, default="")
            if not first or likely[first] < PERHAPS:
                break
            simplest = candidates[first]
            changed.remove(first)
        return None if simplest in tried else simplest

    def expected(self, trials: Sequence[Trial], devices: DeviceEffects = NO_EFFECTS) -> "Expected | None":
        """What all measurements say together of the feasible trials; None where there are none."""
        feasible = [trial for trial in trials if trial.feasible]
        if not feasible:
            return None
        model = self._model_with([self.space.baseline, *(trial.configuration for trial in feasible)], *self._considered)
        places = list(dict.fromkeys(model.place[trial.configuration] for trial in feasible))
        costs = model.costs(each_measured(feasible, devices))
        log_steps, _ = costs.drawn(np.array(places, np.intp), DRAWS, self.seed)
        speeds = dict(zip(places, (self.space.global_batch_size / np.exp(log_steps)).T, strict=True))
        return Expected({trial.number: speeds[model.place[trial.configuration]] for trial in feasible}, costs.noise)

    def _model_with(
        self, needed: Sequence[Configuration], near: Sequence[Configuration], parts: Sequence[SearchSpace]
    ) -> CostModel:
        """The cost model of a pool with the needed configurations and, in a large space, neighbours of those in `near`."""
        model = self._model
        near = near if sum(part.size for part in parts) > POOL else ()  # all of a small space are considered anyway
        if (
            model is None
            or (near, parts) != self._considered
            or any(configuration not in model.place for configuration in needed)
        ):
            warm_start = self.knowledge
            model = CostModel(
                pool(parts, needed, near, self.knowledge.prior, self.seed),
                all_values(self.space),
                self.space.baseline,
                warm_start.prior
                if warm_start.estimate
                else replace(warm_start.prior, memory=_unknown_memory(warm_start.allowed_bytes)),
                warm_start.estimate or (lambda configuration: ASSUMED_SHARE * warm_start.allowed_bytes),
                warm_start.allowed_bytes,
                warm_start.training_steps,
                warm_start.untouched_bytes,
            )
            self._considered, self._model = (near, parts), model
        return model


def expected_work(values: Mapping[str, Sequence[Value]], rates: Mapping[str, float]) -> dict[str, dict[Value, Work]]:
    """The prior's work of the settings' values on a device with these rates (Setting.work)."""
    return {
        name: {value: SETTINGS[name].work(value, rates) for value in choices}
        for name, choices in values.items()
        if name != MICRO
    }


def each_measured(trials: Sequence[Trial], devices: DeviceEffects = NO_EFFECTS) -> list[Observation]:
    """The observations of each of the trials' confirmation rounds, and of the probes of those that have none.

    A probe that led to rounds may have been chosen for its luck. devices: name -> (mean, standard deviation) of the logarithm
    of its speed: the steps of a slow one are taken for as much shorter.
    """
    return [
        _on_mean_device(observed(trial.configuration, measurement), devices.get(measurement.device))
        for trial in trials
        for measurement in trial.confirmations or (trial.measurement,)
    ]


def _on_mean_device(seen: Observation, effect: tuple[float, float] | None) -> Observation:
    if effect is None or seen.step_s is None:
        return seen
    factor, noise = float(np.exp(effect[0])), float(np.hypot(seen.noise, effect[1]))
    return replace(seen, step_s=seen.step_s * factor, optimizer_step_s=seen.optimizer_step_s * factor, noise=noise)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _on_one_thread() -> Any:
    """Linear algebra of such small matrices takes two to three times as long with several threads."""
    return _blas().limit(limits=1, user_api="blas")


def _near(observations: Sequence[Observation]) -> list[Configuration]:
    """The fastest so far that fits."""
    timed = [seen for seen in observations if seen.feasible and seen.step_s is not None]
    return [min(timed, key=lambda seen: seen.step_s or 0.0).configuration] if timed else []


def _unknown_memory(allowed_bytes: int) -> MemoryPrior:
    """Without an estimate: a wide prior whose growth with the micro-batch the probes show."""
    fifth = 0.2 * allowed_bytes
    return MemoryPrior(
        offset_bytes=fifth, slope=1.0, value=0.3, rest=0.02, noise_bytes=0.02 * allowed_bytes, sample_bytes=fifth
    )
