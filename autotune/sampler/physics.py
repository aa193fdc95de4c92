"""The `physics` sampler: an Optuna sampler that chooses measurements by the cost model."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import ThreadpoolController

from autotune.core import Configuration, Measurement, Outcome, Trial, Value
from autotune.judge.observation import Observation, observed
from autotune.judge.standing import Standing, each_measured
from autotune.sampler.candidates import narrowed, pool, stages
from autotune.sampler.constants import P_AS_FAST, P_FIT_CERTAIN, POOL
from autotune.sampler.cost_model import CostModel
from autotune.sampler.parameters import configuration_of, distributions, parameters
from autotune.sampler.policy import Choice, Why, choose
from autotune.sampler.situation import ALONE, Situation
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, SETTINGS, WorkFactors

DRAWS = 2000
"""Draws of the speeds of two configurations. Technical: they give a probability within 1 %."""

LOADER = ("workers", "prefetch_factor")
"""Settings that change nothing but how long a step waits for its batches."""


MEASUREMENT, REPEATS = "measurement", "repeats"
"""User attributes of an Optuna trial: its `Measurement.to_dict()`, from which `PhysicsSampler` learns, and a list of those of
its repetitions."""


class PhysicsSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # Optuna's types are not read here
    """Optuna sampler of training configurations: the measurement with the largest expected gain a second, by a cost model.

    The model (sampler/cost_model.py) has the parts of a training step and the memory of each configuration, so it samples the
    search spaces of autotune alone. Of a space of more than 5,000 configurations it considers the neighbours of the best and of
    the prior's best, and random ones.

    A trial that the objective measured carries `Measurement.to_dict()` as its user attribute `measurement`. A configuration that
    is worth measuring again is sampled again, as a trial of its own. Once nothing is worth its seconds, `study.optimize` is
    stopped, and what is asked then is the winner.

    Args:
        space: Settings with their values, and the baseline, which is sampled first.
        knowledge: Memory limit in bytes of a peak, and what else is known before the first trial.
        seed: Of the random draws.

    Raises:
        ValueError: A parameter that is not of the space is asked for.
    """

    duplicates = 0

    def __init__(self, space: SearchSpace, knowledge: WarmStart, seed: int = 0) -> None:
        self.space, self.knowledge, self.seed = space, knowledge, seed
        self._model: CostModel | None = None
        self._considered: tuple[Sequence[Configuration], Sequence[SearchSpace]] = ((), (space,))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Distributions of all parameters of the space."""
        return distributions(self.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Parameters of the next measurement; of the winner once nothing is worth measuring."""
        others = [each for each in study.get_trials(deepcopy=False) if each.number != trial.number]
        running = [each for each in others if each.state is TrialState.RUNNING]
        running_there = {str(each.number): configuration_of(self.space, each.params) for each in running if each.params}
        standing = Standing(tuple(trials_of(others, self.space)))
        choice = self.choose(standing, Situation(running_there))
        if choice.configuration is None:
            with contextlib.suppress(RuntimeError):  # asked outside of `optimize`, which alone can be stopped
                study.stop()
        return parameters(self.space, choice.configuration or choice.winner or self.space.baseline)

    def configuration(self, trial: optuna.Trial) -> Configuration:
        """The configuration of a trial, all of whose parameters are suggested by this."""
        return configuration_of(
            self.space, {name: _suggested(trial, name, each) for name, each in distributions(self.space).items()}
        )

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Raise ValueError: nothing is known of other parameters."""
        raise ValueError(f"{param_name!r} is no setting of this search space, the only one that PhysicsSampler samples")

    def choose(self, standing: Standing, situation: Situation = ALONE) -> Choice:
        """The measurement to make next, or why there is none."""
        trials, base = standing.trials, self.space.baseline
        if not trials:
            return Choice(base, Why.NEW, untried=self.space.size)
        finals = [observed(trial.configuration, trial.final) for trial in trials]
        # Around what cannot win nothing is tried.
        able = [
            replace(seen, feasible=seen.feasible and not trial.disqualified_reason)
            for trial, seen in zip(trials, finals, strict=True)
        ]
        known = [*standing.observations, *each_measured(situation.calibrations)]
        needed = [base, *(seen.configuration for seen in known), *situation.running.values()]
        ends = [seen.started_s + seen.seconds for seen in standing.observations if seen.started_s is not None]
        situation = replace(
            situation, at_s=max(ends, default=None), margin=self.knowledge.margin, seed=self.seed + len(finals)
        )
        with _on_one_thread():
            for parts in stages(self._worth_varying(standing), able, self.knowledge.core_probes):
                choice = choose(self._model_with(needed, _near(able), parts), standing, situation)
                if choice.why is Why.NEW:
                    break
        return choice

    def _worth_varying(self, standing: Standing) -> SearchSpace:
        """The space without other values of the data loader's settings if no trial waits for its data: they can win nothing."""
        base = self.space.baseline.values
        shares = [trial.measurement.data_wait_share or 0.0 for trial in standing.able]
        if not shares or base.get("workers", 0) or max(shares) > self.knowledge.margin:
            return self.space
        return narrowed(self.space, {name: base[name] for name in LOADER if name in self.space.values})

    def simpler(self, standing: Standing, configuration: Configuration) -> Configuration | None:
        """This configuration with the user's values for all settings that may cost no more than the margin together.

        As likely as P_AS_FAST; None if each one counts.
        """
        base, simplest = self.space.baseline.values, configuration
        tried = [trial.configuration for trial in standing.trials]

        def without(setting: str) -> Configuration:
            return self.space.configuration({**simplest.values, setting: base[setting]})

        def as_fast(candidate: Configuration) -> float:
            """Probability that it is; 0 if it may not fit."""
            model = self._model_with([self.space.baseline, *tried, candidate], *self._considered)
            costs = model.costs(standing.observations)
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
                if candidate in self.space and not standing.rules_out(candidate)
            }
            first = max(likely, key=likely.__getitem__, default="")
            if not first or likely[first] < P_AS_FAST:
                break
            simplest = candidates[first]
            changed.remove(first)
        return None if simplest == configuration else simplest

    def _model_with(
        self, needed: Sequence[Configuration], near: Sequence[Configuration], parts: Sequence[SearchSpace]
    ) -> CostModel:
        """The cost model of a pool with the needed configurations and, in a large space, neighbours of `near`."""
        model = self._model
        near = near if sum(part.size for part in parts) > POOL else ()  # all of a small space are considered anyway
        if (
            model is None
            or (near, parts) != self._considered
            or any(configuration not in model.place for configuration in needed)
        ):
            model = CostModel(pool(parts, needed, near, self.knowledge.prior, self.seed), self.space, self.knowledge)
            self._considered, self._model = (near, parts), model
        return model


def _suggested(trial: optuna.Trial, name: str, among: BaseDistribution) -> Any:
    if isinstance(among, IntDistribution):
        return trial.suggest_int(name, among.low, among.high)
    return trial.suggest_categorical(name, among.choices)


def trials_of(frozen: Sequence[FrozenTrial], space: SearchSpace) -> list[Trial]:
    """The measured configurations among Optuna's trials; those of one configuration are one trial with its repetitions.

    A failed one counts as crashed. Raises ValueError for a completed one without a measurement.
    """
    measured: dict[Configuration, list[Measurement]] = {}
    for each in frozen:
        if not each.state.is_finished() or not each.params:
            continue
        if MEASUREMENT in each.user_attrs:
            plain = (each.user_attrs[MEASUREMENT], *each.user_attrs.get(REPEATS, ()))
            found = [*map(Measurement.from_dict, plain)]
        elif each.state is TrialState.FAIL:
            found = [Measurement(Outcome.CRASHED)]
        else:
            raise ValueError(
                f"trial {each.number} has no measurement: trial.set_user_attr({MEASUREMENT!r}, measurement.to_dict())"
            )
        measured.setdefault(configuration_of(space, each.params), []).extend(found)
    first = measured.pop(space.baseline, None)
    if first is None:  # all else is compared with it
        return []
    return [
        Trial(
            number,
            configuration,
            probe,
            tuple(replace(each, round=each.round or at) for at, each in enumerate(again, 1)),
        )
        for number, (configuration, (probe, *again)) in enumerate([(space.baseline, first), *measured.items()])
    ]


def expected_work(
    values: Mapping[str, Sequence[Value]], rates: Mapping[str, float]
) -> dict[str, dict[Value, WorkFactors]]:
    """The prior's work of the settings' values on a device with these rates (Costs.work)."""
    return {
        name: {value: SETTINGS[name].costs.work(value, rates) for value in choices}
        for name, choices in values.items()
        if name != MICRO
    }


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _on_one_thread() -> Any:
    """Linear algebra of such small matrices takes two to three times as long with several threads."""
    return _blas().limit(limits=1, user_api="blas")


def _near(observations: Sequence[Observation]) -> list[Configuration]:
    """The fastest so far that fits and may win."""
    timed = [seen for seen in observations if seen.feasible and seen.step_s is not None]
    return [min(timed, key=lambda seen: seen.step_s or 0.0).configuration] if timed else []
