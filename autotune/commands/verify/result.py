"""Verification of a study: the speed-up that it promised against the one of plain trainings, as data and as a table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autotune.core import Interval, Measurement, Outcome, Trial
from autotune.core.measurement import ROUNDS_THAT_TELL
from autotune.core.note import Note
from autotune.core.promise_verdict import ANSWER_FAILS, YOURS_FAIL, PromiseKind, PromiseVerdict
from autotune.core.real_run import SHORTFALL
from autotune.core.units import format_bytes, format_duration
from autotune.core.warning import ResultWarning, merged
from autotune.judge.objective import round_ratio
from autotune.judge.standing import Standing
from autotune.report.claim import SOLID_WIDTH
from autotune.report.markdown import sentence, wrapped
from autotune.report.trial_text import interval_columns, interval_fields, range_text, speed_text


def judged(promised: Interval, measured: Interval) -> PromiseKind:
    """Kind of verdict on a speed-up, by its 95 % interval in the search and the interval of the plain trainings.

    SLOWER: the measured interval lies more than SHORTFALL below the promised one, or below 1 if nothing slower was
    promised; or it holds 1 and not the promised speed-up. MORE_THAN_HELD: it lies above the promised one.
    WIDE_INTERVAL: it holds both 1 and the promised speed-up, or is wider than SOLID_WIDTH of its value. HELD: else, so it is
    above 1 if more than 1 was promised, and the two intervals overlap or differ by no more than SHORTFALL.
    """
    if measured.high < (1 - SHORTFALL) * max(promised.low, min(1.0, promised)):
        return PromiseKind.SLOWER
    if measured.low > promised.high:
        return PromiseKind.MORE_THAN_HELD
    if measured.low <= 1 < promised.low:
        return PromiseKind.SLOWER if measured.high < promised else PromiseKind.WIDE_INTERVAL
    return PromiseKind.WIDE_INTERVAL if measured.relative_width > SOLID_WIDTH else PromiseKind.HELD


Pair = tuple[Trial | None, Trial | None]
"""Trials of the user's settings and of the answer; None if not known."""


@dataclass(frozen=True)
class Verification:
    """A study's answer, the user's settings, and plain trainings of both in turns.

    name: of the study, as commands take it. best, baseline: the trials of the study; the baseline is the least change of
    the user's settings that fits if they do not, and None if none does. answer, yours: rounds of plain training with each, in
    their order; of their steps only time, data wait and samples are known, and one that did not complete has a reason. notes:
    limits of the comparison.
    """

    name: str
    best: Trial
    baseline: Trial | None
    answer: Sequence[Measurement] = ()
    yours: Sequence[Measurement] = ()
    objective: str = "samples_per_second"
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        """One line: the verdict with both speed-ups."""
        return f"<Verification of trial {self.best.number}: {sentence(self.verdict.text)}>"

    # What was measured ------------------------------------------------------------------------------------------------

    @property
    def trials(self) -> tuple[Pair, Pair]:
        """The user's settings and the answer, promised and measured: the study's trials, and the plain trainings as trials."""
        return (self.baseline, self.best), (self._yours, self._answer)

    @cached_property
    def _answer(self) -> Trial | None:
        return _as_trial(self.best, self.answer)

    @cached_property
    def _yours(self) -> Trial | None:
        return _as_trial(self.baseline, self.yours)

    @property
    def is_same(self) -> bool:
        """True if the answer is the user's own settings: there is nothing to verify."""
        return self.baseline is not None and self.best.configuration == self.baseline.configuration

    @property
    def promised(self) -> Interval | None:
        """Speed-up by the search, with its 95 % interval; None if the user's settings do not run."""
        if self.baseline is None:
            return None
        return Standing((replace(self.baseline, number=0), self.best), self.objective).gain(self.best)

    @property
    def measured(self) -> Interval | None:
        """Speed-up by plain trainings that took turns, with its 95 % interval over the rounds; None if a side has none.

        Without the rounds that something disturbed, if enough are left.
        """
        few = len(self._quiet) < ROUNDS_THAT_TELL
        answer, yours = (
            _as_trial(trial, [measured for measured in rounds if few or measured.round in self._quiet])
            for trial, rounds in ((self.best, self.answer), (self.baseline, self.yours))
        )
        if answer is None or yours is None or not (answer.final.steps and yours.final.steps):
            return None
        return round_ratio(answer, yours, self.objective)

    @property
    def _quiet(self) -> list[int]:
        """Rounds of both sides in which nothing else was seen to use the device."""
        disturbed = {measured.round for measured in (*self.answer, *self.yours) if measured.observed_warnings}
        return sorted(self._complete - disturbed)

    @property
    def _complete(self) -> set[int]:
        """Rounds of both sides."""
        return {measured.round for measured in self.answer} & {measured.round for measured in self.yours}

    # What it means ----------------------------------------------------------------------------------------------------

    @cached_property
    def verdict(self) -> PromiseVerdict:
        """Verdict by the speed-ups (`judged`), unless a training did not complete or needed more memory than allowed.

        If disturbed rounds leave fewer than ROUNDS_THAT_TELL, the verdict is that nothing can be told.
        """
        promised, measured = self.promised, self.measured
        if self.is_same:
            return PromiseVerdict(PromiseKind.OWN_SETTINGS)
        for trial, kinds in ((self._answer, ANSWER_FAILS), (self._yours, YOURS_FAIL)):
            if trial and not trial.feasible:
                return _failure(trial, kinds)
        if promised is None:
            return PromiseVerdict(PromiseKind.ANSWER_ALONE)
        if measured is None:
            return PromiseVerdict(PromiseKind.NOT_TRAINED)
        timed_s = sum(step.seconds for training in self.answer for step in training.steps)
        numbers = {
            **interval_columns("speedup", measured),
            **interval_columns("promised", promised),
            "width": measured.relative_width,
            "rounds": len(self._complete),
            "disturbed": len(self._complete) - len(self._quiet),
            "seconds": math.ceil(4 * timed_s / 10) * 10,
        }
        kind = judged(promised, measured)
        if len(self._quiet) < ROUNDS_THAT_TELL:
            kind = PromiseKind.DISTURBED if numbers["disturbed"] else PromiseKind.FEW_ROUNDS
        return PromiseVerdict(kind, numbers)

    @property
    def held(self) -> bool | None:
        """True if the promise holds; None: cannot tell."""
        return self.verdict.held

    @property
    def exit_code(self) -> int:
        """0: it holds, or there is nothing to verify; 1: it does not; 4: cannot tell."""
        return {True: 0, False: 1, None: 4}[self.held]

    @property
    def disturbances(self) -> tuple[ResultWarning, ...]:
        """Disturbances that were seen besides the trainings."""
        return merged(warning for measured in (*self.yours, *self.answer) for warning in measured.observed_warnings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints and verification.json holds. Speeds are samples / second, peaks bytes, times seconds.

        rounds: by side what was measured in each, with the time of every step.
        """
        promised, measured = (
            {name: _figures(trial) for name, trial in zip(("yours", "answer"), pair, strict=True)}
            for pair in self.trials
        )
        return {
            "verdict": self.verdict.to_dict(),
            "held": self.held,
            "trial": self.best.number,
            "configuration": self.best.configuration.to_dict(),
            "baseline": self.baseline.configuration.to_dict() if self.baseline else None,
            "promised": interval_fields("speedup", self.promised) | promised,
            "measured": interval_fields("speedup", self.measured) | measured,
            "rounds": {"yours": [*map(_round, self.yours)], "answer": [*map(_round, self.answer)]},
            "seconds": sum(measured.probe_seconds for measured in (*self.yours, *self.answer)),
            "warnings": [warning.to_dict() for warning in self.disturbances],
            "warnings_of_the_promise": [warning.to_dict() for warning in self.best.final.warnings],
            "notes": [note.to_dict() for note in self.notes],
        }


def verification_lines(verification: Verification) -> list[str]:
    """Lines for a terminal of 80 columns: promised and measured side by side, the verdict, advice, warnings and notes."""
    verdict = verification.verdict
    if verdict.kind is PromiseKind.OWN_SETTINGS:
        return wrapped(sentence(verdict.text))
    promised, measured = verification.trials
    line = "{:<22}{:>15}{:>15}  {:<26}".format
    rows = [
        ("samples/s, promised", *_cells(promised, speed_text), _speed_up(verification.promised)),
        ("samples/s, now", *_cells(measured, speed_text), _speed_up(verification.measured)),
        ("step time, now", *_cells(measured, lambda trial: format_duration(trial.final.step_time_s)), ""),
        ("data wait a step, now", *_cells(measured, lambda trial: format_duration(trial.final.data_wait_s)), ""),
        ("peak memory, promised", *_cells(promised, lambda trial: format_bytes(trial.peak_bytes)), ""),
        ("peak memory, now", *_cells(measured, lambda trial: format_bytes(trial.peak_bytes)), ""),
    ]
    report = f"`autotune report {verification.name}` writes the report with the speed-up that was measured now."
    remarks = [f"warning of the promise: {warning}" for warning in verification.best.final.warnings]
    remarks += [f"warning: {text}" for text in verification.disturbances]
    remarks += [f"note: {note}" for note in verification.notes]
    return [
        line("", "yours", "answer", "speed-up").rstrip(),
        *(line(*row).rstrip() for row in rows),
        "",
        *wrapped(sentence(verdict.text)),
        *wrapped(verdict.advice or report),
        *(part for remark in remarks for part in wrapped(remark)),
    ]


def _as_trial(trial: Trial | None, rounds: Sequence[Measurement]) -> Trial | None:
    """These rounds as the rounds of a trial; None without any."""
    return Trial(trial.number, trial.configuration, rounds[0], tuple(rounds)) if trial and rounds else None


def _speed_up(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval:.2f}x ({range_text(interval)})"


def _failure(trial: Trial, kinds: Sequence[PromiseKind]) -> PromiseVerdict:
    """The verdict if this trial did not complete, or needed more memory than allowed."""
    final, (over_limit, out_of_memory, otherwise) = trial.final, kinds
    if final.outcome is Outcome.COMPLETED:
        numbers = {"peak_bytes": final.peak_bytes or 0, "allowed_bytes": final.allowed_bytes or 0}
        return PromiseVerdict(over_limit, numbers)
    kind = out_of_memory if final.outcome is Outcome.OUT_OF_MEMORY else otherwise
    return PromiseVerdict(kind, detail=f"{final.outcome.value.replace('_', ' ')}: {final.reason.rstrip('.')}")


def _cells(trials: Sequence[Trial | None], text: Callable[[Trial], str]) -> list[str]:
    return ["-" if trial is None else text(trial) for trial in trials]


def _figures(trial: Trial | None) -> dict[str, float | None] | None:
    if trial is None:
        return None
    return {
        **interval_fields("samples_per_second", trial.samples_per_second),
        "step_time_s": trial.final.step_time_s,
        "peak_bytes": trial.peak_bytes,
        "data_wait_s": trial.final.data_wait_s,
    }


def _round(measured: Measurement) -> dict[str, Any]:
    return {
        "round": measured.round,
        "outcome": measured.outcome.value,
        "samples_per_second": measured.samples_per_second and float(measured.samples_per_second),
        "step_times_s": [step.seconds for step in measured.steps],
        "untimed_steps": measured.untimed_steps,
        "seconds": measured.probe_seconds,
        "system_state": dict(measured.system_state),
        "warnings": [warning.to_dict() for warning in measured.observed_warnings],
    }
