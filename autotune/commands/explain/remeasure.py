"""Retracing: configurations of a finished study measured again, in interleaved rounds, each measurement on disk at once.

<folder>/probes/0003/confirmation-2/     order, measurement and log of the second round of one configuration
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from autotune.commands.explain.path import (
    Ablation,
    PathStep,
    Taken,
    between,
    differing,
    find_path,
    gain_of,
    legs,
    ordered,
    same_rounds,
    taken_back,
)
from autotune.core.configuration import Configuration
from autotune.core.io import read_json
from autotune.core.measurement import Measurement
from autotune.core.trial import Trial
from autotune.probe import Probe
from autotune.probe.order import ANSWER, ORDER
from autotune.space.dominance import implied_by
from autotune.study.confirm import rotated
from autotune.study.measure import measure
from autotune.study.objective import SPEED_UP_WIDTH, quotient
from autotune.study.plan import Plan
from autotune.study.store import probe_folder


@dataclass(frozen=True)
class Remeasured:
    """What was measured again.

    settings: in the path's order. start: the trial the path starts from, the baseline where it runs. answer: as measured
    again. legs, backs: the path and the take-backs. total: from start to answer. failed: configurations that were
    tried and did not run, among them those that the study's trials settled (by those numbers). rounds: that all share.
    """

    settings: tuple[str, ...]
    start: Trial
    answer: Trial
    legs: tuple[PathStep, ...]
    backs: tuple[Ablation, ...]
    total: PathStep
    failed: tuple[Trial, ...] = ()
    settled: Mapping[Configuration, int] = field(default_factory=dict)
    rounds: int = 0


@dataclass
class Remeasurer:
    """Measures configurations again, each round of each once: what lies on disk is not measured.

    folder: of these measurements. plan, trials: the study's. watch: told what is measured next.
    """

    folder: Path
    plan: Plan
    trials: Sequence[Trial]
    probe: Probe
    watch: Callable[[str], None] = lambda line: None
    nodes: dict[Configuration, Trial] = field(default_factory=dict)
    settled: dict[Configuration, int] = field(default_factory=dict)
    _kept: dict[Configuration, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kept = _read(self.folder)

    def first(self, configuration: Configuration) -> Trial:
        """The configuration's trial with its first round at the least; one that the study's trials settle is not run."""
        if configuration not in self.nodes:
            known = self._settling(configuration)
            if configuration in self._kept:
                self.nodes[configuration] = self._kept[configuration]
            elif known is not None:
                self.settled[configuration] = known.number
                self.nodes[configuration] = Trial(known.number, configuration, known.final)
            else:
                number = 1 + max((one.number for one in self._kept.values()), default=-1)
                measurement = self._measure(configuration, number, 1)
                self._kept[configuration] = Trial(number, configuration, measurement, (measurement,))
                self.nodes[configuration] = self._kept[configuration]
        return self.nodes[configuration]

    def rounds(
        self, configurations: Collection[Configuration], rounds: int, decided: Callable[[], bool] = lambda: True
    ) -> None:
        """Further rounds of these, in turns; up to twice as many as `rounds` while it is not decided."""
        chosen = {node.number: one for one in configurations if (node := self.first(one)).feasible}
        for one_round in range(2, 2 * rounds + 1):
            if one_round > rounds and decided():
                return
            for number in rotated(list(chosen), one_round - 1):
                node = self.nodes[chosen[number]]
                if len(node.confirmations) < one_round and node.feasible:
                    measurement = self._measure(node.configuration, number, one_round)
                    self.nodes[chosen[number]] = replace(node, confirmations=(*node.confirmations, measurement))

    def _settling(self, configuration: Configuration) -> Trial | None:
        """The study's trial that says that this one does not run; never of one that ran."""
        if any(one.feasible and one.configuration == configuration for one in self.trials):
            return None
        return implied_by(configuration, [one for one in self.trials if not one.feasible])

    def _measure(self, configuration: Configuration, number: int, one_round: int) -> Measurement:
        self.watch(f"round {one_round}: {configuration}")
        # Its own nodes: their numbers are not the study's, and a later round takes what compiling cost in the first.
        nodes = sorted(self._kept.values(), key=lambda one: one.number)
        return measure(self.folder, self.plan, nodes, self.probe, configuration, number, one_round)


def _read(folder: Path) -> dict[Configuration, Trial]:
    """Every configuration that was measured in this folder, with the rounds that are whole."""
    known: dict[Configuration, Trial] = {}
    for place in sorted((folder / "probes").glob("*")):
        measured: list[Measurement] = []
        try:
            number = int(place.name)
            while (one := probe_folder(folder, number, len(measured) + 1) / ANSWER).exists():
                measured.append(Measurement.from_dict(read_json(one)))
            order = read_json(probe_folder(folder, number, 1) / ORDER)
            configuration = Configuration.from_dict(order["configuration"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if measured:
            known[configuration] = Trial(number, configuration, measured[0], tuple(measured))
    return known


def retrace(baseline: Configuration, answer: Configuration, again: Remeasurer, rounds: int) -> Remeasured:
    """Measure the path from the baseline to the answer and the answer without each setting, in so many rounds and up to
    twice as many while the whole gain is not known well enough.

    Raises StorageFailed where the disk refuses; KeyboardInterrupt passes, and what was measured stays.
    """
    objective = again.plan.objective
    settings = differing(baseline, answer)
    made = partial(between, baseline, answer)
    again.first(baseline)
    if not again.first(answer).feasible:
        return _unable(settings, again, baseline, answer)
    without = {name: again.first(made(frozenset(settings) - {name})).configuration for name in settings}
    back = {name: again.nodes[one] for name, one in without.items()}
    order = ordered(settings, again.nodes[answer], back, objective)
    path = find_path(order, made, lambda one: again.first(one).feasible)

    def decided() -> bool:
        ends = [again.nodes[made(path[0])], again.nodes[answer]]
        if path[0] == path[-1] or not all(one.feasible for one in ends):
            return True
        return quotient(ends[1], ends[0], objective).relative_width <= SPEED_UP_WIDTH

    again.rounds([*map(made, path), *without.values()], rounds, decided)
    return _told(order, path, without, again, made)


def _told(
    order: Sequence[str],
    path: Sequence[Taken],
    without: Mapping[str, Configuration],
    again: Remeasurer,
    made: Callable[[Taken], Configuration],
) -> Remeasured:
    """What all measurements come to, each configuration with the rounds that all of them have."""
    places = [*map(made, path), *without.values()]
    nodes = dict(zip(places, same_rounds([again.nodes[one] for one in places]), strict=True))
    nodes |= {one: trial for one, trial in again.nodes.items() if one not in nodes}
    objective, trials = again.plan.objective, [(taken, nodes[made(taken)]) for taken in path]
    start, answer = trials[0][1], trials[-1][1]
    return Remeasured(
        tuple(order),
        start,
        answer,
        legs(order, trials, objective),
        taken_back(answer, {name: nodes[one] for name, one in without.items()}, objective),
        PathStep(tuple(order), start, answer, gain_of(answer, start, objective) if len(path) > 1 else None),
        tuple(trial for trial in nodes.values() if not trial.feasible),
        again.settled,
        len(answer.confirmations),
    )


def _unable(settings: Sequence[str], again: Remeasurer, baseline: Configuration, answer: Configuration) -> Remeasured:
    """The answer itself did not run this time: there is no path to it."""
    start, end = again.nodes[baseline], again.nodes[answer]
    failed = tuple(one for one in again.nodes.values() if not one.feasible)
    return Remeasured(
        tuple(settings), start, end, (), (), PathStep(tuple(settings), start, end, None), failed, again.settled
    )
