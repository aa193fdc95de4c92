"""Comparison of the losses that the confirmation's rounds recorded: does each trial learn as float32 does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.core import Configuration, Measurement, Trial
from autotune.core.loss_curves import Curve, Numerics
from autotune.space.settings import learning_differences

ADDED_UP = (
    "with this model the Trainer's losses and gradients are added up over accumulated micro-steps instead of averaged; "
    "the losses compared are averages"
)

BASELINE = "the baseline"


def reference_of(trials: Sequence[Trial], leader: Trial | None) -> Configuration | None:
    """What the others are compared with: the baseline in float32, or, where that does not run, the leader's sizes and
    settings in float32 with the baseline's optimizer. None for the baseline itself, which trained in float32."""
    baseline = trials[0]
    if baseline.feasible:
        in_fp32 = in_float32(baseline.configuration)
        trained = baseline.measurement.settings.get("precision", "fp32")
        return None if in_fp32 == baseline.configuration or trained == "fp32" else in_fp32
    if leader is None:
        return None
    own = {name: value for name, value in baseline.configuration.settings if name == "optimizer"}
    return in_float32(
        replace(leader.configuration, settings=tuple((dict(leader.configuration.settings) | own).items()))
    )


def in_float32(configuration: Configuration) -> Configuration:
    """The configuration with its precision fp32, also where its space leaves precision to the user's arguments."""
    return replace(configuration, settings=tuple((dict(configuration.settings) | {"precision": "fp32"}).items()))


def compare_losses(trials: Sequence[Trial], references: Mapping[int, Measurement]) -> Numerics | None:
    """The losses of all confirmed trials beside the reference's; None where no round was run.

    references: round -> the reference's measurement, empty where the baseline itself is the reference. Where the
    reference did not complete, as float32 may need too much memory, the baseline takes its place.
    """
    if not any(trial.confirmations for trial in trials):
        return None
    usable = {number: round_ for number, round_ in references.items() if round_.feasible}
    name = "fp32" if usable or not references else BASELINE
    if not usable:
        usable = dict(_rounds(trials[0])) if trials[0].feasible else {}
    if not usable:
        return Numerics(problem="neither the baseline nor fp32 ran in the rounds")
    adds_up = _adds_up(trials, usable)
    return Numerics(
        {number: _curve(measured, adds_up) for number, measured in usable.items()},
        {
            trial.number: {number: _curve(measured, adds_up) for number, measured in _rounds(trial)}
            for trial in trials
            if trial.confirmations
        },
        name,
        note=ADDED_UP if adds_up else "",
    )


def disqualify_flagged(trials: list[Trial], numerics: Numerics, require_parity: bool = False) -> None:
    """Bar in this list what is flagged, and what learns as a flagged one does that learns otherwise than the baseline; never
    the baseline, which is the first. require_parity: also what was compared by too few steps to tell."""
    baseline = trials[0].configuration
    flags = {trial.number: numerics.flag(trial.number) for trial in trials[1:]}
    otherwise = [
        trial for trial in trials[1:] if flags[trial.number] and learning_differences(trial.configuration, baseline)
    ]

    def reason(trial: Trial) -> str:
        difference = numerics.difference(trial.number)
        if flags[trial.number]:
            return flags[trial.number]
        if numerics.is_checked(trial.number):
            is_open = require_parity and not (difference and difference.is_sensitive)
            return "the rounds were too short to tell whether it learns as the reference does" if is_open else ""
        for other in otherwise:
            if not learning_differences(trial.configuration, other.configuration):
                return f"learns as trial {other.number}: {flags[other.number]}"
        return trial.disqualified_reason

    trials[1:] = [replace(trial, disqualified_reason=reason(trial)) for trial in trials[1:]]


def _adds_up(trials: Sequence[Trial], references: Mapping[int, Measurement]) -> bool:
    """Whether the Trainer adds losses up over micro-steps instead of averaging them.

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
    return list(zip(trial.rounds, trial.confirmations, strict=True))


def _curve(measured: Measurement, adds_up: bool) -> Curve:
    """The losses of one round, averaged over the micro-steps where they were added up."""
    divisor = measured.accumulation_steps if adds_up else 1
    return Curve(tuple(loss / divisor for loss in measured.losses))
