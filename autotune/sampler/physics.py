"""The sampler that knows the physics: an Optuna sampler that proposes what the cost model expects most of."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import ThreadpoolController

from autotune.core.configuration import Configuration, Value
from autotune.core.interval import Interval
from autotune.core.measurement import Measurement, Outcome
from autotune.core.trial import Trial
from autotune.memory.peak import MemoryPeak
from autotune.sampler.acquisition import Proposal, propose
from autotune.sampler.candidates import POOL, pool, stages
from autotune.sampler.cost_model import CostModel
from autotune.sampler.observation import Observation, observed
from autotune.sampler.parameters import all_values, configuration_of, distributions, parameters
from autotune.sampler.prior import MemoryPrior, Prior
from autotune.space.dominance import implied_by
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, SETTINGS, Work
from autotune.space.utilization import Arithmetic

OBSERVED, ENDED = "observed", "ended"
"""Names under which a finished trial carries what it taught, and its measurement where it did not complete."""


ASSUMED_SHARE = 0.1
"""Of the allowed memory, taken as every configuration's estimate where nothing estimates it."""


@dataclass(frozen=True)
class WarmStart:
    """What a search knows before its first probe.

    allowed_bytes: what a peak may reach. untouched_bytes: what counts against the limit and is no part of a peak.
    estimate: a configuration's peak bytes; None where nothing estimates them.
    prior: of the costs. margin: what is not worth a probe, a share. unknown: what could not be found out, and why.
    peak: the estimate with what it is for, where the configuration was traced. arithmetic: of the model and the device.
    core_probes: that a space's core settings may take before all the others are tried (`stages`).
    training_steps: of the run that is tuned for, over which what it spends at its start is spread.
    """

    allowed_bytes: int
    estimate: Callable[[Configuration], float] | None = None
    prior: Prior = field(default_factory=Prior)
    objective: str = "samples_per_second"
    margin: float = 0.01
    unknown: str = ""
    core_probes: int = 0
    training_steps: int | None = None
    untouched_bytes: int = 0
    peak: Callable[[Configuration], MemoryPeak | None] = lambda configuration: None
    arithmetic: Arithmetic = field(default_factory=Arithmetic)


class PhysicsSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # Optuna is not followed
    """Proposes the configuration whose probe is expected to win most a second.

    It learns from trials that carry `taught()` among their user attributes; what runs elsewhere counts as it is expected to
    end. Of a space of more than 5,000 configurations it considers those near the best, near what the prior expects to be
    best, and random ones.
    """

    def __init__(self, space: SearchSpace, knowledge: WarmStart, seed: int = 0) -> None:
        self.space, self.knowledge, self.seed = space, knowledge, seed
        self._model: CostModel | None = None
        self._considered: tuple[Sequence[Configuration], Sequence[SearchSpace]] = ((), (space,))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        chosen = self.propose(study, trial.number).configuration or self.space.baseline
        return {name: value for name, value in parameters(self.space, chosen).items() if name in search_space}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return parameters(self.space, self.space.baseline)[param_name]

    def propose(self, study: optuna.Study, but: int = -1, trials: Sequence[Trial] | None = None) -> Proposal:
        """What to probe next by the trials of this study, the one numbered `but` left out.

        trials: those of the study as the caller knows them, confirmations and all; default what Optuna's carry.
        """
        finished: list[Trial] = []
        observations: list[Observation] = []
        running: list[Configuration] = []
        choosing = 0
        for one in study.get_trials(deepcopy=False):
            if one.number == but:
                continue
            if one.state is TrialState.RUNNING:
                if len(one.params) == len(self.space.values):
                    running.append(configuration_of(self.space, one.params))
                else:
                    choosing += one.number < but
            elif trials is None and (told := one.user_attrs.get(OBSERVED)):
                observations.append(Observation.from_dict(told))
                if measurement := one.user_attrs.get(ENDED):
                    configuration = observations[-1].configuration
                    finished.append(Trial(one.number, configuration, Measurement.from_dict(measurement)))
        if trials is not None:
            observations = [observed(one.configuration, one.final) for one in trials]
            finished = [one for one in trials if one.measurement.outcome is not Outcome.COMPLETED]
        # Workers that asked a moment before this one choose by the same trials: what they choose is left to them.
        for _ in range(choosing):
            if first := self._choice(observations, finished, running).configuration:
                running.append(first)
        return self._choice(observations, finished, running)

    def _choice(self, observations: list[Observation], ended: list[Trial], running: list[Configuration]) -> Proposal:
        if not observations and not running:
            return Proposal(self.space.baseline, np.inf, np.inf, self.space.size)
        needed, known = [self.space.baseline, *(one.configuration for one in observations), *running], self.knowledge
        with _on_one_thread():
            for parts in stages(self.space, observations, known.core_probes, known.objective):
                choice = propose(
                    self._model_with(needed, _near(observations), parts),
                    observations,
                    lambda one: implied_by(one, ended) is not None,
                    known.objective,
                    running,
                    self.seed + len(observations),
                    known.margin,
                )
                if choice.configuration is not None and choice.max_gain_if_fits > known.margin:
                    break
        return choice

    def expected_speeds(self, trials: Sequence[Trial]) -> dict[int, Interval]:
        """Trial's number -> samples / second with their 95 % interval, by what all measurements say together."""
        known = [(trial, observed(trial.configuration, trial.final)) for trial in trials if trial.feasible]
        observations = [one for _, one in known]
        if not observations:
            return {}
        near, parts = self._considered
        model = self._model_with([self.space.baseline, *(one.configuration for one in observations)], near, parts)
        costs = model.costs(observations)
        found: dict[int, Interval] = {}
        for trial, _ in known:
            at = model.place[trial.configuration]
            size, log_step, half = self.space.global_batch_size, costs.log_step[at], 1.96 * costs.deviation[at]
            ends = (size * math.exp(-log_step + away) for away in (0.0, -half, half))
            found[trial.number] = Interval(*ends)
        return found

    def _model_with(
        self, needed: Sequence[Configuration], near: Sequence[Configuration], parts: Sequence[SearchSpace]
    ) -> CostModel:
        """The model of a pool in which these are, and neighbours of those that are near where it is a choice."""
        model = self._model
        near = near if sum(part.size for part in parts) > POOL else ()  # of a small space all are considered anyway
        if model is None or (near, parts) != self._considered or any(one not in model.place for one in needed):
            known = self.knowledge
            model = CostModel(
                pool(parts, needed, near, self.knowledge.prior, self.seed),
                all_values(self.space),
                self.space.baseline,
                known.prior if known.estimate else replace(known.prior, memory=_unknown_memory(known.allowed_bytes)),
                known.estimate or (lambda one: ASSUMED_SHARE * known.allowed_bytes),
                known.allowed_bytes,
                known.training_steps,
                known.untouched_bytes,
            )
            self._considered, self._model = (near, parts), model
        return model


def expected_work(values: Mapping[str, Sequence[Value]], rates: Mapping[str, float]) -> dict[str, dict[Value, Work]]:
    """Prior.work: what the settings say of their values on a device of these rates (Setting.work)."""
    return {
        name: {value: SETTINGS[name].work(value, rates) for value in known}
        for name, known in values.items()
        if name != MICRO
    }


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _on_one_thread() -> Any:
    """Linear algebra of so small matrices: several threads would only wait for each other, two to three times as long."""
    return _blas().limit(limits=1, user_api="blas")


def _near(observations: Sequence[Observation]) -> list[Configuration]:
    """The fastest so far that fits."""
    able = [one for one in observations if one.feasible and one.step_s is not None]
    return [min(able, key=lambda one: one.step_s or 0.0).configuration] if able else []


def _unknown_memory(allowed_bytes: int) -> MemoryPrior:
    """Without an estimate: a peak that is mostly open, and grows with the micro-batch as probes will tell."""
    fifth = 0.2 * allowed_bytes
    return MemoryPrior(
        offset_bytes=fifth, slope=1.0, value=0.3, rest=0.02, noise_bytes=0.02 * allowed_bytes, sample_bytes=fifth
    )


def to_attrs(configuration: Configuration, measurement: Measurement) -> dict[str, Any]:
    """The user attributes of a finished trial from which the sampler learns."""
    told: dict[str, Any] = {OBSERVED: observed(configuration, measurement).to_dict()}
    if measurement.outcome is not Outcome.COMPLETED:
        told[ENDED] = replace(measurement, steps=(), rounds=()).to_dict()
    return told
