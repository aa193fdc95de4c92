"""Which short trainings show whether the finalists learn as float32 does, run once each and kept.

<folder>/reference-0/losses.json    float32 with the baseline's settings, one training a seed
         stand-in-0/losses.json     the same with the first finalist's, where the baseline's need too much memory
         trial-0007/losses.json     a finalist
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Outcome, Trial, read_json, write_json
from autotune.core.failures import Failure
from autotune.core.loss_curves import SEEDS, STEPS, Curve, Numerics
from autotune.probe.order import CHILD_ANSWER

KEPT = "losses.json"

ADDED_UP = (
    "with this model the Trainer's losses and gradients are added up over accumulated micro-steps instead of averaged; "
    "the losses compared are averages"
)

Attempt = Callable[[Configuration, int, Path], tuple[Any, Failure | None]]
"""(configuration, seed, folder for its files) -> the answer to a `numerics` order of STEPS steps, or why there is none."""


def check_numerics(
    trials: Sequence[Trial], finalists: Sequence[int], attempt: Attempt, folder: Path, weights: str
) -> Numerics:
    """The losses of the finalists, named by number, beside those of float32 with the baseline's settings.

    Every finalist is trained, one that changes no number format too: checkpointing and accumulation can be wrong as
    well. Where float32 itself cannot be trained nothing else is, and `problem` says why. weights: where they come
    from, for people. What lies in the folder from an interrupted search is not trained again. Raises OSError where the
    disk refuses.
    """
    known = {trial.number: trial for trial in trials}
    chosen = [known[number].configuration for number in finalists]
    reference, name = in_float32(known[0].configuration), "reference"
    first, failure = _train(reference, SEEDS[0], attempt, folder / f"{name}-{SEEDS[0]}")
    if failure and failure.outcome is Outcome.OUT_OF_MEMORY and chosen:
        reference, name = stand_in(chosen[0], known[0].configuration), "stand-in"
        first, failure = _train(reference, SEEDS[0], attempt, folder / f"{name}-{SEEDS[0]}")
    references = [first]
    for seed in SEEDS[1:]:
        if not _problem(references):
            references.append(_train(reference, seed, attempt, folder / f"{name}-{seed}")[0])
    numerics = Numerics(tuple(references), {}, reference.values, weights, _problem(references))
    if numerics.problem:
        return numerics
    curves = {
        number: first
        if configuration == reference
        else _train(configuration, SEEDS[0], attempt, _place(folder, number))[0]
        for number, configuration in zip(finalists, chosen, strict=True)
    }
    numerics = replace(numerics, curves=curves)
    steps = {number: known[number].configuration.gradient_accumulation_steps for number in finalists}
    return _averaged(numerics, reference.gradient_accumulation_steps, steps)


def in_float32(configuration: Configuration) -> Configuration:
    """The configuration with its precision fp32, also where its space leaves precision to the user's arguments."""
    return replace(configuration, settings=tuple((dict(configuration.settings) | {"precision": "fp32"}).items()))


def stand_in(finalist: Configuration, baseline: Configuration) -> Configuration:
    """The finalist's sizes and settings, which fit, in float32 with the baseline's optimizer."""
    own = {name: value for name, value in baseline.settings if name == "optimizer"}
    return in_float32(replace(finalist, settings=tuple((dict(finalist.settings) | own).items())))


def predicted_seconds(trials: Sequence[Trial], finalists: Sequence[int]) -> float:
    """How long `check_numerics` will train, by the step times that were measured; starting processes comes on top.

    Float32's step takes what a trial of that configuration took, else what the baseline did, else the slowest finalist.
    Infinity where no step was timed at all.
    """
    known = {trial.number: trial for trial in trials}
    reference = in_float32(known[0].configuration)
    times = [time for number in finalists if (time := known[number].final.step_time_s)]
    alike = [trial for trial in trials if trial.configuration == reference]
    measured = [time for trial in [*alike, known[0]] if (time := trial.final.step_time_s)]
    slowest = [*measured, max(times, default=float("inf"))][0]
    others = [number for number in finalists if known[number].configuration != reference]
    return STEPS * (len(SEEDS) * slowest + sum(known[number].final.step_time_s or slowest for number in others))


def _train(configuration: Configuration, seed: int, attempt: Attempt, folder: Path) -> tuple[Curve, Failure | None]:
    """The curve of one training, kept where it has losses: what failed is tried again by a resumed search."""
    if known := kept(configuration, seed, folder):
        return known, None
    answer, failure = attempt(configuration, seed, folder)
    if failure is not None:
        return Curve(problem=f"{failure.outcome.value.replace('_', ' ')}: {failure.reason}"), failure
    curve = Curve.from_dict(answer)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / KEPT, {"configuration": configuration.to_dict(), "seed": seed, "curve": curve.to_dict()})
    (folder / CHILD_ANSWER).unlink(missing_ok=True)
    return curve, None


def has_losses(trial: Trial, baseline: Trial, folder: Path) -> bool:
    """Whether `check_numerics` need not train this trial: it did so in this folder, or it is float32's own."""
    if trial.configuration == in_float32(baseline.configuration):
        return True
    return kept(trial.configuration, SEEDS[0], _place(folder, trial.number)) is not None


def _place(folder: Path, number: int) -> Path:
    return folder / f"trial-{number:04d}"


def kept(configuration: Configuration, seed: int, folder: Path) -> Curve | None:
    """The curve of this training that lies in this folder; None where there is no whole one."""
    try:
        data = read_json(folder / KEPT)
        curve = Curve.from_dict(data["curve"])
        same = Configuration.from_dict(data["configuration"]) == configuration and data["seed"] == seed
        return curve if same and len(curve.losses) == STEPS else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _averaged(numerics: Numerics, reference_steps: int, steps: Mapping[int, int]) -> Numerics:
    """With losses averaged over the micro-steps where the Trainer added them up. steps: trial number -> micro-steps.

    It does so for a model that takes the number of items in the whole step and then ignores it. The first step shows
    it: there all have the same weights and samples, so that their losses are equal, or as their numbers of micro-steps.
    """
    first = numerics.references[0].losses[0]
    told = {n: curve.losses[0] / first for n, curve in numerics.curves.items() if curve.losses and first}
    apart = {n: ratio for n, ratio in told.items() if steps[n] != reference_steps and 0 < ratio < math.inf}
    if not apart:
        return numerics
    farthest = max(apart, key=lambda n: abs(math.log(steps[n] / reference_steps)))
    as_steps, ratio = math.log(steps[farthest] / reference_steps), math.log(apart[farthest])
    if abs(ratio - as_steps) >= abs(ratio):
        return numerics
    return replace(
        numerics,
        references=tuple(_divided(curve, reference_steps) for curve in numerics.references),
        curves={number: _divided(curve, steps[number]) for number, curve in numerics.curves.items()},
        note=ADDED_UP,
    )


def _divided(curve: Curve, by: int) -> Curve:
    return replace(curve, losses=tuple(loss / by for loss in curve.losses))


def _problem(references: Sequence[Curve]) -> str:
    """Why float32's curves cannot be compared with; empty where they can."""
    for seed, curve in zip(SEEDS, references, strict=False):
        if curve.problem:
            return f"fp32 with seed {seed} cannot be trained: {curve.problem}"
        if step := curve.non_finite_step:
            return f"fp32's own loss became {curve.losses[step - 1]} in step {step} with seed {seed}"
    return ""
