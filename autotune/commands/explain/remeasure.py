"""Measurement of a finished study's configurations again, in interleaved rounds: rules of the search's loop.

baseline, answer, answer without each setting, path      a round of each, as far as the measured ones do not settle the path
A B C | B C A | C A B | ...                              further rounds of all that ran
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from autotune.commands.explain.path import (
    Ablation,
    PathStep,
    Taken,
    ablations,
    between,
    differing,
    find_path,
    gain_of,
    path_steps,
    same_rounds,
)
from autotune.core import Configuration, Interval, Trial
from autotune.core.slot import Slot
from autotune.judge.constants import SPEED_UP_WIDTH
from autotune.judge.dominance import implied_by
from autotune.study.job import Known, Run
from autotune.study.schedule import Turn


@dataclass(frozen=True)
class Remeasured:
    """Results of measuring again.

    total: from the path's start (the baseline if it runs) to the answer, with the settings in the path's order. steps,
    ablations: empty if the answer did not run. failed: configurations that did not run, among them those implied by
    trials of the study (implied: their numbers). rounds: of all configurations.
    """

    total: PathStep
    steps: tuple[PathStep, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    failed: tuple[Trial, ...] = ()
    implied: Mapping[Configuration, int] = field(default_factory=dict)
    rounds: int = 0

    @property
    def start(self) -> Trial:
        return self.total.before

    @property
    def answer(self) -> Trial:
        return self.total.after


@dataclass(frozen=True)
class Remeasurement:
    """Measurements that explain the answer of a study, and what follows from them.

    study_trials: of that study. rounds: of each configuration at least, up to twice as many while the total gain is uncertain.
    """

    baseline: Configuration
    answer: Configuration
    study_trials: Sequence[Trial]
    objective: str
    rounds: int

    def next_measurement(self, turn: Turn) -> Run | Known | None:
        """The first wanted measurement that is not made; the rule of the loop.

        A configuration whose failure the study's trials imply is not run.
        """
        trials = _by_configuration(turn.study.trials)
        for configuration, number in self._wanted(trials):
            trial = trials.get(configuration)
            if trial is None:
                slot, failed = Slot(turn.study.ledger.next_number), self._implying(configuration)
                return Known(slot, configuration, measurement=failed.final) if failed else Run(slot, configuration)
            if number not in trial.rounds:
                slot, first = Slot(trial.number, number), trial.measurement
                return Known(slot, configuration, measurement=first) if number == 1 else Run(slot, configuration)
        return None

    def results(self, measured: Sequence[Trial]) -> Remeasured:
        """Results of the trials, all of whose measurements are made."""
        trials, without = _by_configuration(measured), self._without
        failed = tuple(trial for trial in measured if not trial.feasible)
        implying = {trial.configuration: self._implying(trial.configuration) for trial in failed}
        implied = {configuration: trial.number for configuration, trial in implying.items() if trial}
        if not trials[self.answer].feasible:
            settings = differing(self.baseline, self.answer)
            total = PathStep(settings, trials[self.baseline], trials[self.answer], None)
            return Remeasured(total, failed=failed, implied=implied)
        order, path = self._path(trials)
        trials |= _by_configuration(same_rounds([trials[each] for each in {*path.values(), *without.values()}]))
        answer, nodes = trials[self.answer], [(taken, trials[each]) for taken, each in path.items()]
        return Remeasured(
            PathStep(tuple(order), nodes[0][1], answer, self._total_gain(trials)),
            path_steps(order, nodes, self.objective),
            ablations(answer, {name: trials[each] for name, each in without.items()}, self.objective),
            failed,
            implied,
            len(answer.confirmations),
        )

    def _wanted(self, trials: Mapping[Configuration, Trial]) -> Iterator[tuple[Configuration, int]]:
        """Configurations and their rounds, in order; what comes next follows from the measurements of those before."""
        yield self.baseline, 1
        yield self.answer, 1
        if not trials[self.answer].feasible:
            return
        without = self._without.values()
        yield from ((each, 1) for each in without)
        path = self._path(trials)[1].values()
        yield from ((each, 1) for each in path)
        chosen = [each for each in dict.fromkeys((*path, *without)) if trials[each].confirmations[0].feasible]
        for number in range(2, 2 * self.rounds + 1):
            gain = self._total_gain(_first_rounds(trials, number - 1))
            if number > self.rounds and (gain is None or gain.relative_width <= SPEED_UP_WIDTH):
                return
            yield from ((each, number) for each in rotated(chosen, number - 1) if trials[each].feasible)

    @cached_property
    def _without(self) -> dict[str, Configuration]:
        """Setting -> the answer without it."""
        settings = differing(self.baseline, self.answer)
        return {name: between(self.baseline, self.answer, {*settings} - {name}) for name in settings}

    def _path(self, trials: Mapping[Configuration, Trial]) -> tuple[list[str], dict[Taken, Configuration]]:
        """The settings in the order in which they are tried, and the path by the first rounds; what is not measured may run.

        Further rounds of an earlier call would lead along another path, with other configurations to measure.
        """
        first = _first_rounds(trials, 1)
        without = {name: first[each] for name, each in self._without.items()}
        order = [row.setting for row in ablations(first[self.answer], without, self.objective)]
        configuration_of = partial(between, self.baseline, self.answer)
        path = find_path(order, configuration_of, lambda each: each not in first or first[each].feasible)
        return order, {taken: configuration_of(taken) for taken in path}

    def _total_gain(self, trials: Mapping[Configuration, Trial]) -> Interval | None:
        """Gain over the whole path; None if it is a single configuration or one of its ends does not run."""
        path = [*self._path(trials)[1].values()]
        return gain_of(trials[self.answer], trials[path[0]], self.objective) if len(path) > 1 else None

    def _implying(self, configuration: Configuration) -> Trial | None:
        """The study's trial that implies that this one does not run; None if it ran in the study."""
        if any(trial.feasible and trial.configuration == configuration for trial in self.study_trials):
            return None
        return implied_by(configuration, [trial for trial in self.study_trials if not trial.feasible])


def _by_configuration(trials: Sequence[Trial]) -> dict[Configuration, Trial]:
    return {trial.configuration: trial for trial in trials}


def _first_rounds(trials: Mapping[Configuration, Trial], count: int) -> dict[Configuration, Trial]:
    """The trials with as many of their rounds."""
    return {each: replace(trial, confirmations=trial.confirmations[:count]) for each, trial in trials.items()}


def rotated(rivals: Sequence[Configuration], by: int) -> list[Configuration]:
    """A B C, then B C A, then C A B: no rival always runs on the warmer machine."""
    by %= max(1, len(rivals))
    return [*rivals[by:], *rivals[:by]]
