"""The winner so far, and the expected gains of further measurements."""

from collections.abc import Iterator, Sequence

import numpy as np

from autotune.core import Configuration, Outcome, Trial
from autotune.core.interval import Ratio
from autotune.judge.constants import EACH_CHANGE, LOOKS, SAME_MEMORY
from autotune.judge.observation import Observation
from autotune.judge.standing import Standing, each_measured
from autotune.sampler.constants import COMPARED, FANTASY_NOISE, OPTIMISM, REPEATS, RUN_S
from autotune.sampler.cost_model import CostModel
from autotune.sampler.costs import ExpectedCosts, Places
from autotune.sampler.gp import Numbers, expected_improvement
from autotune.sampler.situation import Situation
from autotune.space.settings import learning_differences

LEAST_PAIRS = min(LOOKS)


class State:
    """The winner so far, its proof, and the expected gains of further measurements.

    expected: what is measured now, as it is expected to end.
    """

    def __init__(self, model: CostModel, standing: Standing, situation: Situation) -> None:
        self.model, self.standing, self.situation, self.measured = model, standing, situation, standing.observations
        known = [*self.measured, *each_measured(situation.calibrations)]
        costs = model.costs(known)
        running = situation.running.items()
        self.expected = [
            expected_observation(model, costs, configuration, situation.at_s, name) for name, configuration in running
        ]
        self.costs = costs = model.costs([*known, *self.expected]) if running else costs
        self.mean, self.deviation, self.likelihood = -costs.log_step, costs.deviation, costs.fits
        self.tried = list(dict.fromkeys(seen.configuration for seen in (*self.measured, *self.expected)))
        self.untried = np.ones(len(model.configurations), bool)
        self.untried[[model.place[configuration] for configuration in self.tried]] = False
        failed = {seen.configuration for seen in self.measured if not seen.feasible}
        whole = [seen for seen in self.measured if seen.feasible and not seen.ended_early and seen.step_s is not None]
        self.able = [
            model.place[configuration]
            for configuration in dict.fromkeys(seen.configuration for seen in whole)
            if configuration not in failed and configuration not in standing.barred
        ]
        base = model.place[model.baseline]
        rival = model.place[standing.compared.configuration] if standing.compared else base
        self.base = rival if rival in self.able else None
        fastest = min((float(np.exp(costs.log_step[place])) for place in self.able), default=1.0)
        self.run_s = situation.run_s or run_seconds(model.training_steps, fastest)
        points = model.points
        self.changes = (points.codes != 0).sum(1) + (points.micro != points.micro[base])
        self.worth = self.mean - EACH_CHANGE * self.changes
        self.winner = self._winner()
        self.claim = None if self.winner is None else self._claim(self.winner)

    def of(self, place: int | None) -> list[Observation]:
        """The timed measurements of a configuration."""
        return [
            seen for seen in self.measured if seen.step_s is not None and self.model.place[seen.configuration] == place
        ]

    def may_matter(self, place: int) -> bool:
        """True if measuring it again may change the winner: it, or what it would be told from, may differ by the margin.

        False once it was measured so often that another measurement is expected to show nothing.
        """
        if self.winner is None or not self.situation.min_repeats or len(self.of(place)) >= COMPARED:
            return False
        others = [other for other in self.able if other != self.winner and place in (other, self.winner)]
        if not others:
            return False
        ahead, variance = self.difference(self.winner, others)
        changes = self.changes[self.winner] - self.changes[others]
        return bool((OPTIMISM * np.sqrt(variance) - ahead + EACH_CHANGE * changes > self.situation.margin).any())

    def still_open(self, places: Places) -> Iterator[int]:
        """The places among these that are not ruled out."""
        return (place for place in places if not self._cannot_win(self.model.configurations[place]))

    def _cannot_win(self, configuration: Configuration) -> bool:
        return self.standing.rules_out(configuration) or any(
            not learning_differences(configuration, other) for other in self.situation.flagged
        )

    # The winner so far ------------------------------------------------------------------------------------------

    def needed_s(self, place: int) -> float:
        """Seconds that a proof of this place still needs at least."""
        if self.base is None or place == self.base or not self.situation.min_repeats:
            return 0.0
        missing = max(0, max(LEAST_PAIRS, self.situation.min_repeats) - self.pairs(place))
        return missing * (self.seconds(place) + self.seconds(self.base))

    def whole_proof_s(self) -> float:
        """Seconds that a proof of what is measured next needs after that, if it is as fast as the baseline."""
        return 0.0 if self.base is None else 2 * max(LEAST_PAIRS, self.situation.min_repeats) * self.seconds(self.base)

    def seconds(self, place: int) -> float:
        """Seconds of measuring it again."""
        return self.situation.repeat_seconds.get(
            self.model.configurations[place], float(self.costs.probe_seconds[place])
        )

    def _winner(self) -> int | None:
        if not self.able:
            return None
        needed_s = {place: self.needed_s(place) for place in self.able}
        net = {place: self.worth[place] - needed_s[place] / self.run_s for place in self.able}
        able, base = self.able, self.base
        if base is not None:
            # Near the end of a limited time what can still be proven goes before what is a little faster and cannot.
            provable = [place for place in able if needed_s[place] <= self.situation.seconds_left]
            able = provable if any(net[place] > net[base] for place in provable) else able
        top = max(able, key=lambda place: net[place])
        equal = [p for p in able if self.changes[p] == self.changes[top] and net[top] - net[p] <= EACH_CHANGE]
        least = min(self.costs.peak[place] for place in equal)
        lean = [place for place in equal if self.costs.peak[place] <= (1 + SAME_MEMORY) * least]
        return max(lean, key=lambda place: net[place])

    def since_better(self, margin: float) -> int:
        """Number of trials after the first one that is as fast as the winner, but for the margin."""
        places = [self.model.place[configuration] for configuration in self.tried]
        as_fast = [place in self.able and self.mean[place] >= self.mean[self.winner] - margin for place in places]
        return len(places) - 1 - as_fast.index(True) if True in as_fast else 0

    def difference(self, top: int, others: Sequence[int]) -> tuple[Numbers, Numbers]:
        """Mean and variance of by how much faster (logarithm) this place is than the others."""
        log_steps, _ = self.costs.drawn(np.array([top, *others], np.intp), 400, 0)
        ahead = log_steps[:, 1:] - log_steps[:, :1]
        return self.costs.log_step[list(others)] - self.costs.log_step[top], ahead.var(0)

    # Gains of further measurements ------------------------------------------------------------------------------

    def gains(self, untried: Sequence[int]) -> tuple[Numbers, Numbers]:
        """(n,) each, by place: the expected gain of a measurement, and how many times its seconds that is worth.

        Of a new one, or again of one that was measured; 0 elsewhere.
        """
        assert self.winner is not None
        places, able = np.array([*self.able, *untried], np.intp), len(self.able)
        count, winner = len(places), self.able.index(self.winner)
        needed = np.array([self.needed_s(place) for place in places])
        needed[able:] = self.whole_proof_s()
        net = self.worth[places] - needed / self.run_s
        behind = net - max(net[winner], net[:able].max())
        gains = np.zeros((len(REPEATS), count))
        others = [index for index in range(able) if index != winner]
        for weight, moved in self.costs.posterior_shift(places, self.situation.at_s, REPEATS, self.situation.device):
            apart = moved - moved[:, :, winner : winner + 1, :]
            deviation = np.sqrt((apart**2).sum(0))  # (repeats, z, x)
            of_others = np.zeros((len(REPEATS), count))
            if others:
                of_others = _improvement(behind[others][None, :, None], deviation[:, others, :]).max(1)
            itself = _improvement(behind[None, :], np.diagonal(deviation, axis1=1, axis2=2))
            itself[:, :able] = 0.0
            gains += weight * np.maximum(of_others, itself)
        gains[:, able:] *= self.likelihood[places[able:]]
        seconds = self.costs.probe_seconds[places]
        seconds[:able] = [self.seconds(place) for place in places[:able]]
        scores = gains * self.run_s / (np.array(REPEATS)[:, None] * seconds)
        by_place = np.zeros((2, len(self.mean)))
        by_place[:, places] = gains[scores.argmax(0), np.arange(count)], scores.max(0)
        return by_place[0], by_place[1]

    # The proof --------------------------------------------------------------------------------------------------

    def trial(self, place: int | None) -> Trial | None:
        """The trial of this place, or None."""
        if place is None:
            return None
        configuration = self.model.configurations[place]
        return next((trial for trial in self.standing.trials if trial.configuration == configuration), None)

    def pairs(self, place: int) -> int:
        """Pairs of measurements of this place and the baseline."""
        trial = self.trial(place)
        return self.standing.pairs(trial) if trial else 0

    def _claim(self, place: int) -> Ratio | None:
        """The speed of this place over the baseline's; None if it is not shown, or by fewer pairs than are asked for."""
        trial = self.trial(place)
        least = self.situation.min_repeats
        if self.base is None or trial is None or not least or not self.standing.is_shown(trial):
            return None
        return self.standing.gain(trial) if place == self.base or self.pairs(place) >= least else None


def _improvement(ahead: Numbers, deviation: Numbers) -> Numbers:
    """Expected improvement, with no deviation too."""
    return expected_improvement(ahead, np.maximum(deviation, 1e-12), 0.0)


def run_seconds(training_steps: int | None, step_s: float) -> float:
    """Seconds of the run to tune for, at this step's."""
    return RUN_S if training_steps is None else training_steps * step_s


def expected_observation(
    model: CostModel, costs: ExpectedCosts, configuration: Configuration, at_s: float | None = None, device: str = ""
) -> Observation:
    """The observation that is expected of a measurement that begins then on this device."""
    place = model.place[configuration]
    optimizer = float(np.exp(costs.log_optimizer_step[place]))
    step = configuration.gradient_accumulation_steps * float(np.exp(costs.log_micro_step[place])) + optimizer
    return Observation(
        configuration,
        Outcome.COMPLETED,
        step,
        optimizer,
        noise=FANTASY_NOISE,
        seconds=float(costs.probe_seconds[place]),
        device=device,
        started_s=at_s,
    )
