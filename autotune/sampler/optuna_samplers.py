"""Samplers by name: `physics`, and Optuna's by ask and tell on a study in memory."""

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import optuna
from optuna.trial import TrialState

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.stop_reason import StopKind, StopReason
from autotune.judge.dominance import implied_by
from autotune.judge.standing import Standing
from autotune.sampler.constants import ANSWERED_IN_A_ROW, POOL
from autotune.sampler.parameters import configuration_of, distributions, parameters
from autotune.sampler.physics import PhysicsSampler
from autotune.sampler.policy import Choice, End, Why
from autotune.sampler.situation import ALONE, Situation
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace

DeviceEffects = Mapping[str, tuple[float, float]]
"""Device -> (mean, standard deviation) of the logarithm of its speed, against all devices'."""

NO_EFFECTS: DeviceEffects = {}

Score = Callable[[Measurement | None], float]
"""Measurement -> value for Optuna; for None the worst value."""


class Sampler(Protocol):
    """Chooses what is measured next. duplicates: proposals that earlier trials answered."""

    duplicates: int

    def choose(self, standing: Standing, situation: Situation = ALONE) -> Choice:
        """The measurement to make next, or why there is none."""
        ...


def make_sampler(name: str, seed: int, space: SearchSpace, knowledge: WarmStart, score: Score) -> Sampler:
    """`physics`, or one of Optuna's: `tpe`, `gp`, `random`, `qmc` or `brute-force`; raises KeyError for any other name.

    score: the value of a measurement for Optuna's.
    """
    physics = PhysicsSampler(space, knowledge, seed)
    if name == "physics":
        return physics
    with warnings.catch_warnings():
        # Interfaces that may change; the installed version works.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return OptunaSampler(_OPTUNA[name](seed), space, score, physics)


_OPTUNA: Mapping[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=5),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=5, warn_independent_sampling=False),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "qmc": lambda seed: optuna.samplers.QMCSampler(
        seed=seed, scramble=True, warn_independent_sampling=False, warn_asynchronous_seeding=False
    ),
    "brute-force": lambda seed: optuna.samplers.BruteForceSampler(seed=seed),
}


class OptunaSampler:
    """One of Optuna's samplers, asked and told on a study in memory, which is made from the trials at each start.

    policy: it says what is measured again once nothing new is proposed.
    """

    def __init__(
        self,
        sampler: optuna.samplers.BaseSampler,
        space: SearchSpace,
        score: Score,
        policy: PhysicsSampler,
    ) -> None:
        self.space, self.duplicates, self.policy = space, 0, policy
        self.study = _in_memory(sampler)
        self._score = score
        self._asked: dict[Configuration, optuna.Trial] = {}
        self._told: set[int] = set()

    def choose(self, standing: Standing, situation: Situation = ALONE) -> Choice:
        """The next proposal that no trial answers for; once there is none, or no time, what is measured again."""
        trials = standing.trials
        longest_s = max((trial.measurement.probe_seconds for trial in trials[-2:]), default=0.0)
        end = End.PROBES if situation.probes_left <= 0 else End.TIME
        reason, new = None, None
        is_time = end is not End.PROBES and longest_s <= situation.seconds_left
        # The first proposal is tried, whatever time that leaves; others leave time for a proof: pairs of the fastest and the
        # baseline.
        round_s = max(situation.repeat_seconds.values(), default=longest_s)
        proof_s = 2 * situation.min_repeats * round_s if len(trials) > 1 else 0.0
        leaves_time = longest_s + proof_s <= situation.seconds_left
        if is_time and leaves_time:
            new, reason = self.propose(trials, [*situation.running.values()], situation.effects)
        if new is None:
            again = self.policy.choose(standing, replace(situation, probes_left=0))
            if again.configuration is not None:
                return again
            if is_time and not leaves_time:  # nothing is to be proven in it
                new, reason = self.propose(trials, [*situation.running.values()], situation.effects)
        if new is not None:
            return Choice(new, Why.NEW, untried=self.space.size)
        if again.end is End.TIME:
            return again
        return replace(again, end=End.ALL if is_time else end, stop=reason)

    def propose(
        self, trials: Sequence[Trial], running: Sequence[Configuration] = (), devices: DeviceEffects = NO_EFFECTS
    ) -> tuple[Configuration | None, StopReason | None]:
        """(the next configuration that no trial answers for, None) or (None, why there is none).

        A proposal with such a trial is told at once, and counted.
        """
        for trial in trials:
            if trial.number not in self._told:
                asked = self._asked.pop(trial.configuration, None) or self._ask(trial.configuration)
                tell(self.study, asked, trial, self._score, devices)
                self._told.add(trial.number)
        for configuration in running:
            if configuration not in self._asked:
                self._asked[configuration] = self._ask(configuration)
        if self._all_answered(trials, running):
            return None, self._exhausted()
        for _ in range(ANSWERED_IN_A_ROW):
            asked = self.study.ask(distributions(self.space))
            configuration = configuration_of(self.space, asked.params)
            answer = implied_by(configuration, trials)
            if configuration in running:
                with contextlib.suppress(RuntimeError):  # as in `finish`
                    self.study.tell(asked, state=TrialState.FAIL)
            elif answer is None and configuration in self.space:
                self._asked[configuration] = asked
                return configuration, None
            else:
                asked.set_user_attr("answered_by", answer.number if answer else "outside --only")
                is_same = answer is not None and answer.configuration == configuration and answer.measurement.feasible
                finish(self.study, asked, answer.measurement if is_same and answer else None, self._score)
                self.duplicates += 1
        return None, self._exhausted()

    def _ask(self, configuration: Configuration) -> optuna.Trial:
        return ask_for(self.study, self.space, configuration)

    def _exhausted(self) -> StopReason:
        """The reason why nothing new is proposed: the whole space was walked through, or many proposals were answered already."""
        if self.space.size <= POOL:
            return StopReason(StopKind.ALL_TESTED)
        return StopReason(StopKind.ALL_PROPOSED, {"proposals": ANSWERED_IN_A_ROW})

    def _all_answered(self, trials: Sequence[Trial], running: Sequence[Configuration]) -> bool:
        """True if the trials answer for every configuration of a space small enough to walk through."""
        if self.space.size > POOL:
            return False
        return all(implied_by(configuration, trials) or configuration in running for configuration in self.space)


def _in_memory(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=sampler, direction="maximize")


def ask_for(study: optuna.Study, space: SearchSpace, configuration: Configuration) -> optuna.Trial:
    """A new trial of the study with this configuration."""
    study.enqueue_trial(parameters(space, configuration))
    return study.ask(distributions(space))


def tell(
    study: optuna.Study, asked: optuna.Trial, trial: Trial, score: Score, devices: DeviceEffects = NO_EFFECTS
) -> None:
    """Tell what came of a trial: FAIL for a crash, else COMPLETE with its value and its constraint."""
    measurement = trial.measurement
    attributes: dict[str, Any] = {
        "number": trial.number,
        "configuration": trial.configuration.to_dict(),
        "outcome": measurement.outcome.value,
        "ended_early": measurement.ended_early,
    }
    for name, value in attributes.items():
        asked.set_user_attr(name, value)
    if measurement.outcome is Outcome.CRASHED:
        with contextlib.suppress(RuntimeError):  # as in `finish`
            study.tell(asked, state=TrialState.FAIL)
    else:
        finish(study, asked, measurement, score, devices)


def finish(
    study: optuna.Study,
    asked: optuna.Trial,
    measurement: Measurement | None,
    score: Score,
    devices: DeviceEffects = NO_EFFECTS,
) -> None:
    """Tell COMPLETE with a value, as on a device of mean speed, and the one constraint; the worst of both for no measurement."""
    value = score(measurement)
    if measurement and measurement.device in devices:
        value /= math.exp(devices[measurement.device][0])
    asked.set_constraint("fits", measurement.fits if measurement else 1.0)
    # Brute force stops Optuna's loop once it has seen all; ours asks it.
    with contextlib.suppress(RuntimeError):
        study.tell(asked, value, skip_if_finished=True)
