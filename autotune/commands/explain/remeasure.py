"""Measurement of a finished study's configurations again, in interleaved rounds, each on disk at once.

<folder>/probes/0003/confirmation-2/     order, measurement and log of the second round of one configuration
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from autotune.commands.explain.path import (
    Ablation,
    PathStep,
    ablations,
    between,
    differing,
    find_path,
    gain_of,
    path_steps,
    same_rounds,
)
from autotune.core import Configuration, Interval, Measurement, Trial, read_json
from autotune.core.slot import Slot
from autotune.probe import Probe
from autotune.probe.order import ANSWER, ORDER
from autotune.space.dominance import implied_by
from autotune.study.job import Job
from autotune.study.measure import measure
from autotune.study.objective import SPEED_UP_WIDTH
from autotune.study.plan import Plan
from autotune.study.store import probe_folder


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


@dataclass
class Remeasurer:
    """Measures configurations, each at most once a round: measurements on disk count.

    folder: of these measurements. plan, study_trials: the study's. watch: called with a line before each measurement.
    """

    folder: Path
    plan: Plan
    study_trials: Sequence[Trial]
    probe: Probe
    watch: Callable[[str], None] = lambda line: None
    trials: dict[Configuration, Trial] = field(default_factory=dict)
    implied: dict[Configuration, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._measured = _read(self.folder)

    def trial(self, configuration: Configuration) -> Trial:
        """The configuration's trial, with one round at least; one whose failure the study's trials imply is not run."""
        if configuration not in self.trials:
            if configuration not in self._measured and (failed := self._implying(configuration)) is not None:
                self.implied[configuration] = failed.number
                self.trials[configuration] = Trial(failed.number, configuration, failed.final)
                return self.trials[configuration]
            if configuration not in self._measured:
                number = 1 + max((trial.number for trial in self._measured.values()), default=-1)
                measurement = self._measure(configuration, number, 1)
                self._measured[configuration] = Trial(number, configuration, measurement, (measurement,))
            self.trials[configuration] = self._measured[configuration]
        return self.trials[configuration]

    def runs(self, configuration: Configuration) -> bool:
        return self.trial(configuration).feasible

    def run_rounds(
        self, configurations: Collection[Configuration], rounds: int, is_decided: Callable[[], bool]
    ) -> None:
        """All rounds but the first, in turns; up to twice as many as `rounds` while it is not decided."""
        chosen = {self.trial(each).number: each for each in configurations if self.runs(each)}
        for number_of_round in range(2, 2 * rounds + 1):
            if number_of_round > rounds and is_decided():
                return
            for number in rotated(list(chosen), number_of_round - 1):
                trial = self.trials[chosen[number]]
                if len(trial.confirmations) < number_of_round and trial.feasible:
                    measurement = self._measure(trial.configuration, number, number_of_round)
                    confirmations = (*trial.confirmations, measurement)
                    self.trials[chosen[number]] = replace(trial, confirmations=confirmations)

    def _implying(self, configuration: Configuration) -> Trial | None:
        """The study's trial that implies that this one does not run; None if it ran in the study."""
        if any(trial.feasible and trial.configuration == configuration for trial in self.study_trials):
            return None
        return implied_by(configuration, [trial for trial in self.study_trials if not trial.feasible])

    def _measure(self, configuration: Configuration, number: int, number_of_round: int) -> Measurement:
        self.watch(f"round {number_of_round}: {configuration}")
        # Its own trials: their numbers are not the study's, and a later round takes the first one's compile time.
        trials = sorted(self._measured.values(), key=lambda trial: trial.number)
        return measure(self.folder, self.plan, trials, self.probe, Job(Slot(number, number_of_round), configuration))


def _read(folder: Path) -> dict[Configuration, Trial]:
    """The measured configurations in this folder, with their complete rounds."""
    trials: dict[Configuration, Trial] = {}
    for trial_folder in sorted((folder / "probes").glob("*")):
        rounds: list[Measurement] = []
        try:
            number = int(trial_folder.name)
            while (path := probe_folder(folder, Slot(number, len(rounds) + 1)) / ANSWER).exists():
                rounds.append(Measurement.from_dict(read_json(path)))
            order = read_json(probe_folder(folder, Slot(number, 1)) / ORDER)
            configuration = Configuration.from_dict(order["configuration"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if rounds:
            trials[configuration] = Trial(number, configuration, rounds[0], tuple(rounds))
    return trials


def rotated(rivals: Sequence[int], by: int) -> list[int]:
    """A B C, then B C A, then C A B: no rival always runs on the warmer machine."""
    by %= max(1, len(rivals))
    return [*rivals[by:], *rivals[:by]]


def remeasure(baseline: Configuration, answer: Configuration, remeasurer: Remeasurer, rounds: int) -> Remeasured:
    """Measure the path from the baseline to the answer, and the answer without each setting.

    Up to twice as many rounds while the total gain is uncertain. Raises StorageFailed; KeyboardInterrupt passes, and
    everything measured is kept.
    """
    objective, trials = remeasurer.plan.objective, remeasurer.trials
    settings = differing(baseline, answer)
    configuration_of = partial(between, baseline, answer)
    remeasurer.trial(baseline)
    if not remeasurer.runs(answer):
        total = PathStep(settings, trials[baseline], trials[answer], None)
        return Remeasured(total, failed=_failed(trials), implied=remeasurer.implied)
    without = {name: configuration_of(frozenset(settings) - {name}) for name in settings}

    def in_first_round(configuration: Configuration) -> Trial:
        """Further rounds of an earlier call would lead along another path, with other configurations to measure."""
        trial = remeasurer.trial(configuration)
        return replace(trial, confirmations=trial.confirmations[:1])

    first_round = {name: in_first_round(configuration) for name, configuration in without.items()}
    order = [row.setting for row in ablations(in_first_round(answer), first_round, objective)]
    found = find_path(order, configuration_of, lambda configuration: in_first_round(configuration).feasible)
    path = {taken: configuration_of(taken) for taken in found}
    start = next(iter(path.values()))

    def total_gain() -> Interval | None:
        return gain_of(trials[answer], trials[start], objective) if len(path) > 1 else None

    def is_decided() -> bool:
        gain = total_gain()
        return gain is None or gain.relative_width <= SPEED_UP_WIDTH

    configurations = [*path.values(), *without.values()]
    remeasurer.run_rounds(configurations, rounds, is_decided)
    trials |= {trial.configuration: trial for trial in same_rounds([trials[each] for each in configurations])}
    return Remeasured(
        PathStep(tuple(order), trials[start], trials[answer], total_gain()),
        path_steps(order, [(taken, trials[configuration]) for taken, configuration in path.items()], objective),
        ablations(trials[answer], {name: trials[configuration] for name, configuration in without.items()}, objective),
        _failed(trials),
        remeasurer.implied,
        len(trials[answer].confirmations),
    )


def _failed(trials: Mapping[Configuration, Trial]) -> tuple[Trial, ...]:
    return tuple(trial for trial in trials.values() if not trial.feasible)
