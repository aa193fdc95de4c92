"""Comparison of the losses that the confirmation's rounds recorded: does each trial learn as float32 does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.core import Measurement, Trial
from autotune.core.loss_curves import BASELINE, Curve, Numerics
from autotune.core.note import Note, NoteKind
from autotune.judge.standing import Standing
from autotune.space.settings import learning_differences
from autotune.study.reference import NAMES, precision_of, references, why_none


def compare_losses(standing: Standing, trainings: Mapping[int, Measurement]) -> Numerics | None:
    """The losses of all confirmed trials beside the reference's; None if no round was run.

    trainings: round -> the reference's measurement, empty if the baseline itself is the reference. If none completed, the
    baseline takes its place, and a note says why. Rounds of composed steps are left out.
    """
    trials = standing.trials
    if not any(trial.confirmations for trial in trials):
        return None
    usable = {number: round_ for number, round_ in trainings.items() if round_.feasible}
    notes: list[Note] = []
    if usable:
        name = NAMES[max(map(precision_of, usable.values()), key=[*NAMES].index)]
    elif not trials[0].feasible:
        return Numerics(notes=(Note(NoteKind.BASELINE_FAILS), why_none(standing, trainings)))
    elif trainings or references(standing):
        name, notes = BASELINE, [why_none(standing, trainings)]
    else:
        name = "fp32"
    usable = usable or dict(_rounds(trials[0]))
    if adds_up := _adds_up(trials, usable):
        notes.append(Note(NoteKind.LOSSES_ADDED_UP))
    return Numerics(
        {number: _curve(measured, adds_up) for number, measured in usable.items()},
        {
            trial.number: {number: _curve(measured, adds_up) for number, measured in _rounds(trial)}
            for trial in trials
            if trial.confirmations
        },
        name,
        notes=tuple(notes),
    )


def disqualify_flagged(trials: list[Trial], numerics: Numerics, require_parity: bool = False) -> None:
    """Bar in this list what is flagged, and what learns as a flagged one does that learns otherwise than the baseline.

    Never the baseline, which is the first. require_parity: also what was not compared, or by too few steps to tell.
    """
    flags = {trial.number: numerics.flag(trial.number) for trial in trials[1:]}
    otherwise = flagged(trials, numerics)

    def reason(trial: Trial) -> str:
        difference = numerics.difference(trial.number)
        if flags[trial.number]:
            return flags[trial.number]
        if numerics.is_checked(trial.number):
            is_open = require_parity and not (difference and difference.is_sensitive)
            return "the rounds were too short to tell whether it learns as the reference does" if is_open else ""
        if require_parity and trial.confirmed:
            return f"its losses were not compared: {numerics.why_unchecked(trial.number)}"
        for other in otherwise:
            if not learning_differences(trial.configuration, other.configuration):
                return f"learns as trial {other.number}: {flags[other.number]}"
        return trial.disqualified_reason

    trials[1:] = [replace(trial, disqualified_reason=reason(trial)) for trial in trials[1:]]


def flagged(trials: Sequence[Trial], numerics: Numerics) -> list[Trial]:
    """The flagged trials that learn otherwise than the baseline, which is the first: what learns as they do cannot win."""
    baseline = trials[0].configuration
    return [
        trial
        for trial in trials[1:]
        if numerics.flag(trial.number) and learning_differences(trial.configuration, baseline)
    ]


def _adds_up(trials: Sequence[Trial], references: Mapping[int, Measurement]) -> bool:
    """True if the Trainer adds losses up over micro-steps instead of averaging them.

    It does so for a model that takes the number of items in the whole step and then ignores it. The first step shows
    it: there all have the same weights and samples, so that their losses are equal, or as their numbers of micro-steps.
    """
    ratios = [
        (
            math.log(measured.accumulation_steps / other.accumulation_steps),
            math.log(measured.losses[0] / other.losses[0]),
        )
        for trial in trials
        for number, measured in _rounds(trial)
        if (other := references.get(number))
        and measured.accumulation_steps != other.accumulation_steps
        and measured.losses
        and other.losses
        and 0 < measured.losses[0] / (other.losses[0] or math.nan) < math.inf
    ]
    if not ratios:
        return False
    as_steps, ratio = max(ratios, key=lambda pair: abs(pair[0]))
    return abs(ratio - as_steps) < abs(ratio)


def _rounds(trial: Trial) -> list[tuple[int, Measurement]]:
    """(number, measurement) of the rounds that trained as many samples a step as all others."""
    pairs = zip(trial.rounds, trial.confirmations, strict=True)
    return [(number, measured) for number, measured in pairs if not measured.is_composed]


def _curve(measured: Measurement, adds_up: bool) -> Curve:
    """The losses of one round, averaged over the micro-steps if they were added up."""
    divisor = measured.accumulation_steps if adds_up else 1
    return Curve(tuple(loss / divisor for loss in measured.losses))
