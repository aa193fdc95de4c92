"""The `physics` sampler: an Optuna sampler that proposes by the cost model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import ThreadpoolController

from autotune.core import Configuration, Measurement, Outcome, Trial, Value
from autotune.memory.peak import MemoryPeak
from autotune.sampler.acquisition import Proposal, propose
from autotune.sampler.candidates import POOL, pool, stages
from autotune.sampler.cost_model import CostModel
from autotune.sampler.gp import Numbers
from autotune.sampler.observation import Observation, observed
from autotune.sampler.parameters import all_values, configuration_of, distributions, parameters
from autotune.sampler.prior import MemoryPrior, Prior
from autotune.space.dominance import implied_by
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, SETTINGS, Work
from autotune.space.utilization import Arithmetic

OBSERVED, ENDED, RISKY = "observed", "ended", "risky"
"""User attributes of a trial: its observation, its measurement where it did not complete, and that it might not fit."""

DRAWS = 2000
"""Draws of the speeds of trials, from which what one may win over another is told within 3 %."""

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


class PhysicsSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # Optuna is not followed
    """Proposes the configuration whose probe has the largest expected gain a second.

    It learns from trials that have the user attributes of `to_attrs`; running ones count with their expected result. Of a
    space of more than 5,000 configurations it considers those near the best, near the prior's best, and random ones.
    """

    def __init__(self, space: SearchSpace, knowledge: WarmStart, seed: int = 0) -> None:
        self.space, self.knowledge, self.seed = space, knowledge, seed
        self.devices: Mapping[str, tuple[float, float]] = {}
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

    def propose(
        self, study: optuna.Study, excluded: int = -1, trials: Sequence[Trial] | None = None, risks: int = 0
    ) -> Proposal:
        """The next probe by the trials of this study without the excluded number.

        trials: the study's as the caller has them, confirmations included; by default read from Optuna's attributes. risks:
        how many tries of what may not fit a search may make; those that it made are marked in Optuna's record (RISKY).
        """
        failed: list[Trial] = []
        observations: list[Observation] = []
        running: list[Configuration] = []
        choosing = 0
        for record in study.get_trials(deepcopy=False):
            if record.number == excluded:
                continue
            risks -= bool(record.user_attrs.get(RISKY))
            if record.state is TrialState.RUNNING:
                if len(record.params) == len(self.space.values):
                    running.append(configuration_of(self.space, record.params))
                else:
                    choosing += record.number < excluded
            elif trials is None and (data := record.user_attrs.get(OBSERVED)):
                observations.append(Observation.from_dict(data))
                if measurement := record.user_attrs.get(ENDED):
                    configuration = observations[-1].configuration
                    failed.append(Trial(record.number, configuration, Measurement.from_dict(measurement)))
        measurements: list[Observation] | None = None
        if trials is not None:
            observations = [observed(trial.configuration, trial.final) for trial in trials]
            measurements = each_measured(trials, self.devices)
            failed = [trial for trial in trials if trial.measurement.outcome is not Outcome.COMPLETED]
        # Workers that asked a moment before this one choose by the same trials: their choices are left to them.
        for _ in range(choosing):
            if first := self._proposal(observations, failed, running, measurements).configuration:
                running.append(first)
        return self._proposal(observations, failed, running, measurements, max(0, risks))

    def _proposal(
        self,
        observations: list[Observation],
        failed: list[Trial],
        running: list[Configuration],
        measurements: list[Observation] | None,
        risks: int = 0,
    ) -> Proposal:
        if not observations and not running:
            return Proposal(self.space.baseline, np.inf, np.inf, self.space.size)
        needed, warm_start = (
            [self.space.baseline, *(seen.configuration for seen in observations), *running],
            self.knowledge,
        )
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
                    measurements,
                    risks,
                )
                if proposal.configuration is not None and proposal.can_win(warm_start.margin):
                    break
        return proposal

    def expected(self, trials: Sequence[Trial]) -> "Expected | None":
        """What all measurements say together of the feasible trials; None where there are none."""
        feasible = [trial for trial in trials if trial.feasible]
        if not feasible:
            return None
        model = self._model_with([self.space.baseline, *(trial.configuration for trial in feasible)], *self._considered)
        places = list(dict.fromkeys(model.place[trial.configuration] for trial in feasible))
        costs = model.costs(each_measured(feasible, self.devices))
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


def each_measured(
    trials: Sequence[Trial], devices: Mapping[str, tuple[float, float]] | None = None
) -> list[Observation]:
    """The observations of each of the trials' confirmation rounds, and of the probes of those that have none.

    A probe that led to rounds may have been chosen for its luck. devices: name -> (mean, standard deviation) of the logarithm
    of its speed: the steps of a slow one are taken for as much shorter.
    """
    return [
        _on_mean_device(observed(trial.configuration, measurement), (devices or {}).get(measurement.device))
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


def to_attrs(configuration: Configuration, measurement: Measurement) -> dict[str, Any]:
    """The user attributes of a finished trial from which the sampler learns."""
    attrs: dict[str, Any] = {OBSERVED: observed(configuration, measurement).to_dict()}
    if measurement.outcome is not Outcome.COMPLETED:
        attrs[ENDED] = replace(measurement, steps=(), rounds=()).to_dict()
    return attrs
