"""Standing of a search: with what all is compared, who leads, the answer, the speed-up of each trial, and what is barred."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.core.configuration import Configuration
from autotune.core.interval import Interval, Ratio, quotient_of_means
from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.judge.claim import claim, pairs
from autotune.judge.constants import (
    EACH_CHANGE,
    MAX_DISPLAY_WIDTH,
    PROCESSES_DIFFER,
    SAME_MEMORY,
    SAME_SPEED,
    SPEED_UP_WIDTH,
)
from autotune.judge.dominance import implied_by
from autotune.judge.objective import speed
from autotune.judge.observation import Observation, observed
from autotune.judge.substitute import compared_with, substitute
from autotune.space.settings import learning_differences


@dataclass(frozen=True)
class Standing:
    """Evidence of the measurements of a search; each value is computed once.

    trials: in the order of their numbers, the baseline first. objective: name of the rate that is compared. may_be_unproven:
    whether a trial that was never measured in pairs may be the answer: of a search that had no time for them, or wants none.
    """

    trials: tuple[Trial, ...] = ()
    objective: str = "samples_per_second"
    may_be_unproven: bool = True

    @cached_property
    def baseline(self) -> Trial | None:
        """Trial 0, or None."""
        return next((trial for trial in self.trials if trial.number == 0), None)

    @cached_property
    def substitute(self) -> Trial | None:
        """The measured trial that changes the least of a baseline without enough memory, or None."""
        return substitute(self.trials)

    @cached_property
    def compared(self) -> Trial | None:
        """The trial with which the others are compared: the baseline, or its substitute; None if neither runs."""
        return compared_with(self.trials)

    @cached_property
    def answer(self) -> Trial | None:
        """The user's own settings unless another trial is shown to be better; None if nothing may win.

        Once one was measured in pairs with the compared one, only such can win; else first measurements are compared. Where
        neither the baseline nor its substitute runs, all that was measured counts as shown.
        """
        baseline = self._among(self._competing)
        if baseline is None:
            return self._simplest(self._competing)
        better = [trial for trial in self._competing if trial is not baseline and self.is_better(trial)]
        return self._simplest(better) or baseline

    @cached_property
    def leader(self) -> Trial | None:
        """The trial that others have to beat while the search runs, shown to be better than the baseline or not yet; or None.

        One that learns differently leads only if it is shown to be faster.
        """
        return max(
            filter(self._may_lead, self.able), key=lambda trial: self.speeds.get(trial.number, 0.0), default=None
        )

    @cached_property
    def fastest(self) -> Trial | None:
        """The fastest trial that may win, shown to be faster or not; or None."""
        return max(self.able, key=lambda trial: self.speeds.get(trial.number, 0.0), default=None)

    @cached_property
    def able(self) -> list[Trial]:
        """The trials that fit, were measured to their end and are not barred."""
        return [
            trial
            for trial in self.trials
            if trial.feasible and not trial.measurement.ended_early and not trial.disqualified_reason
        ]

    @cached_property
    def observations(self) -> list[Observation]:
        """Observations of each measurement, in the order of their time."""
        return each_measured(self.trials)

    @cached_property
    def barred(self) -> list[Configuration]:
        """Configurations that cannot win although they fit."""
        return [trial.configuration for trial in self.trials if trial.disqualified_reason]

    @cached_property
    def speeds(self) -> Mapping[int, float]:
        """Number of each trial that has a speed -> how fast it is, as a multiple of the compared one if there is one."""
        gains = {trial.number: self.gain(trial) for trial in self.trials}
        rates = {trial.number: speed(trial.final, self.objective) for trial in self.trials}
        return {number: float(gains[number] or rate) for number, rate in rates.items() if rate}

    @cached_property
    def disqualified(self) -> list[tuple[Trial, str]]:
        """Trials that were faster than the answer and did not win, with the reason.

        What was measured again first, then by speed.
        """
        rivals = []
        for trial in self.trials:
            if not trial.feasible or trial.measurement.ended_early or trial is self.answer:
                continue
            if self.answer is not None and self.speeds.get(trial.number, 0.0) <= self.speeds.get(
                self.answer.number, 0.0
            ):
                continue
            gain = self.gain(trial) if self._among(self._competing) is not None else None
            if trial.disqualified_reason:
                rivals.append((trial, trial.disqualified_reason))
            elif gain is not None and is_open(gain) and gain.high >= 1 and trial in self._competing:
                rivals.append((trial, "it cannot be told to be faster"))
        return sorted(
            rivals, key=lambda pair: (not pair[0].confirmed, -float(speed(pair[0].final, self.objective) or 0.0))
        )

    def rules_out(self, configuration: Configuration) -> bool:
        """True if what did not complete shows that this configuration cannot either."""
        return implied_by(configuration, self._failed) is not None

    @cached_property
    def _failed(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.measurement.outcome is not Outcome.COMPLETED]

    # Of one trial ------------------------------------------------------------------------------------------------

    def gain(self, trial: Trial) -> Ratio | None:
        """Speed divided by that of the compared trial, with its interval; None if one of them has no speed.

        By pairs, else by all measurements of both, whose processes differ (PROCESSES_DIFFER).
        """
        compared = self.compared
        if compared is None:
            return None
        rate, its = speed(trial.final, self.objective), speed(compared.final, self.objective)
        if not rate or not its:
            return None
        if trial.number == compared.number:
            return Ratio(1.0, 1.0, 1.0)
        if shown := claim(trial, compared, self.objective):
            return shown
        quotient = quotient_of_means(
            speed(trial.measurement, self.objective) or rate, speed(compared.measurement, self.objective) or its
        )
        half = 1.96 * math.hypot(quotient.relative_width / 3.92, math.sqrt(2) * PROCESSES_DIFFER)
        return Ratio(quotient, quotient * math.exp(-half), quotient * math.exp(half))

    def displayed_gain(self, trial: Trial | None) -> Ratio | None:
        """The gain to show while a search runs; None if noise hides it (its interval is wider than MAX_DISPLAY_WIDTH)."""
        gain = None if trial is None else self.gain(trial)
        return gain if gain is not None and gain.relative_width <= MAX_DISPLAY_WIDTH else None

    def is_shown(self, trial: Trial) -> bool:
        """True if pairs show how many times as fast as the compared trial this one is.

        Of the compared one itself there is nothing to prove; if there is none, true if the trial was measured again.
        """
        compared = self.compared
        if compared is None:
            return trial.confirmed
        is_itself = trial.number == compared.number
        return trial.feasible and (is_itself or claim(trial, compared, self.objective) is not None)

    def is_better(self, trial: Trial) -> bool:
        """True if the trial is shown to be better than the compared one: surely (97.5 %) faster, or leaner and as fast.

        Less than SAME_SPEED is no reason to change settings. What is only leaner has to learn alike and its speed to be proven.
        """
        gain, compared = self.gain(trial), self.compared
        if gain is None or compared is None:
            return False
        if gain.low > 1 and gain > 1 + SAME_SPEED:
            return True
        is_as_fast = not is_open(gain) and gain >= 1 - SAME_SPEED
        learns_alike = not learning_differences(trial.configuration, compared.configuration)
        return is_as_fast and self.is_shown(trial) and learns_alike and _is_leaner(trial, compared)

    def changes(self, trial: Trial) -> int:
        """Number of the user's settings that the trial changes; 0 without a baseline among the trials."""
        if self.baseline is None:
            return 0
        values, before = trial.configuration.values, self.baseline.configuration.values
        return sum(before.get(name) != value for name, value in values.items())

    def pairs(self, trial: Trial) -> int:
        """Number of pairs of measurements of the trial and of the compared one."""
        return len(pairs(trial, self.compared)) if self.compared else 0

    # How it is found ---------------------------------------------------------------------------------------------

    @cached_property
    def _competing(self) -> list[Trial]:
        """The trials that may win: those that are shown against the compared one, if there are any; else all able ones."""
        baseline = self._among(self.able)
        shown = [trial for trial in self.able if (trial.confirmed if baseline is None else self.is_shown(trial))]
        is_decided = baseline is not None and not self.may_be_unproven
        return shown if is_decided or any(trial is not baseline for trial in shown) else self.able

    def _among(self, trials: Sequence[Trial]) -> Trial | None:
        """The compared trial if it is among these, else None."""
        return next((trial for trial in trials if self.compared and trial.number == self.compared.number), None)

    def _may_lead(self, trial: Trial) -> bool:
        compared = self.compared
        if compared is None or not learning_differences(trial.configuration, compared.configuration):
            return True
        gain = self.gain(trial)
        return gain is None or gain.low > 1

    def _simplest(self, better: Sequence[Trial]) -> Trial | None:
        """The fastest of these less EACH_CHANGE for each changed setting, or one with less memory that is as fast; or None."""
        net = {
            trial.number: self.speeds.get(trial.number, 0.0) * (1 - EACH_CHANGE * self.changes(trial))
            for trial in better
        }
        simplest = max(better, key=lambda trial: net[trial.number], default=None)
        if simplest is None:
            return None
        least = net[simplest.number] * (1 - EACH_CHANGE)
        equal = [t for t in better if self.changes(t) == self.changes(simplest) and net[t.number] >= least]
        leanest = min(trial.peak_bytes or 0 for trial in equal)
        lean = [trial for trial in equal if (trial.peak_bytes or 0) <= (1 + SAME_MEMORY) * leanest]
        return max(lean, key=lambda trial: net[trial.number])


def is_open(gain: Interval) -> bool:
    """True if a speed-up tells neither that the trial is faster than the baseline nor that it is as fast."""
    return gain.low <= 1 and (gain.high < 1 or gain.relative_width > SPEED_UP_WIDTH)


def _is_leaner(trial: Trial, baseline: Trial) -> bool:
    """True if each of its measurements needed less memory, by SAME_MEMORY, than any of the baseline's."""
    peaks, others = ([m.peak_bytes or 0 for m in each.measurements if m.feasible] for each in (trial, baseline))
    return all(peaks) and max(peaks) <= (1 - SAME_MEMORY) * min(others)


def each_measured(trials: Sequence[Trial]) -> list[Observation]:
    """The observations of each of the trials' measurements, in the order of their time."""
    measured = [observed(trial.configuration, each) for trial in trials for each in trial.measurements]
    return sorted(measured, key=lambda seen: -math.inf if seen.started_s is None else seen.started_s)
