"""Calibration: results of a study about the device rather than the model, for the prior of later studies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from autotune.core import Trial, Value
from autotune.judge.observation import observed
from autotune.judge.standing import each_measured
from autotune.sampler.constants import MODELS_DIFFER
from autotune.sampler.cost_model import CostModel
from autotune.sampler.prior import MIB, Learned, Prior
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, CostChange

UNKNOWN_BYTES = 1e15
"""Standard deviation of bytes about which nothing was learned. Technical: infinity would have no arithmetic."""

KNOWN = Learned(CostChange(), CostChange())
"""Effects of the baseline's value, against which others are measured."""


@dataclass(frozen=True)
class Calibration:
    """Deviations of settings' effects from the expected ones, and of peaks from estimates."""

    learned: Mapping[str, Mapping[Value, Learned]] = field(default_factory=dict)  # the baseline's value is among them
    offset_bytes: float | None = None  # peak of the baseline less its estimate; None if nothing was estimated

    def to_dict(self) -> dict[str, Any]:
        # As pairs: JSON's names are texts, and values need not be.
        effects = {
            name: [[value, *learned.deviation, *learned.std] for value, learned in values.items()]
            for name, values in self.learned.items()
        }
        return {"effects": effects, "offset_bytes": self.offset_bytes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Calibration":
        learned = {
            name: {
                value: Learned(CostChange(*map(float, numbers[:3])), CostChange(*map(float, numbers[3:])))
                for value, *numbers in rows
            }
            for name, rows in data["effects"].items()
        }
        return cls(learned, data["offset_bytes"])


def calibrated(space: SearchSpace, knowledge: WarmStart, trials: Sequence[Trial]) -> Calibration:
    """The calibration of these trials: from them alone, without earlier studies."""
    timed = [trial for trial in trials if observed(trial.configuration, trial.final).micro_step_s is not None]
    if not timed or timed[0] != trials[0] or timed[0].configuration != space.baseline:
        return Calibration()
    pool = list(dict.fromkeys(trial.configuration for trial in timed))
    estimate = knowledge.estimate or (lambda configuration: 0.0)
    prior = replace(knowledge.prior, learned={})
    model = CostModel(pool, space, replace(knowledge, estimate=estimate, prior=prior, training_steps=None))
    measured = each_measured(timed)
    learned = model.learned(measured)
    base = space.baseline.values
    if not knowledge.estimate:
        return Calibration({name: {base[name]: KNOWN, **values} for name, values in _without_bytes(learned).items()})
    excess = float(model.costs(measured).peak[0] - model.estimates[0] * MIB)
    return Calibration({name: {base[name]: KNOWN, **values} for name, values in learned.items()}, excess)


def _without_bytes(learned: Mapping[str, Mapping[Value, Learned]]) -> dict[str, dict[Value, Learned]]:
    """The effects without those on peaks, of a study without estimates from which peaks could differ."""
    return {
        name: {
            value: Learned(part.deviation._replace(peak_bytes=0.0), part.std._replace(peak_bytes=UNKNOWN_BYTES))
            for value, part in values.items()
        }
        for name, values in learned.items()
    }


def informed(prior: Prior, space: SearchSpace, past: Sequence[Calibration]) -> Prior:
    """The prior of a study on a device with past studies.

    Each value's effect is expected as the settings say and as far from that as past studies measured it, weighed by how well
    they did and by how much models differ. Values that none of them measured keep their expected effects.
    """
    baseline, learned = space.baseline.values, {}
    for name in (name for name in space.values if name != MICRO):
        base = baseline[name]
        of_setting = [values for calibration in past if base in (values := calibration.learned.get(name, {}))]
        told = {
            value: [_difference(values[value], values[base]) for values in of_setting if value in values]
            for value in space.values[name]
            if value != base
        }
        usual = prior.micro_step.value, prior.optimizer_step.value, prior.memory.value_bytes
        combined = {
            value: _combined(several, CostChange(prior.prior_std(name, value, base) * usual[0], *usual[1:]))
            for value, several in told.items()
            if several
        }
        if combined:
            learned[name] = combined
    offsets = [calibration.offset_bytes for calibration in past if calibration.offset_bytes is not None]
    memory = prior.memory
    if offsets:
        # Studies' offsets differ by more than chance if there are few of them.
        spread = max(float(np.std(offsets)), memory.offset_bytes / (1 + len(offsets)))
        memory = replace(memory, mean_offset_bytes=fmean(offsets), offset_bytes=spread)
    return replace(prior, learned=learned, memory=memory)


def _difference(learned: Learned, base: Learned) -> Learned:
    """Effect against the baseline's value of this study, which may differ from the past study's."""
    return Learned(
        CostChange(*(a - b for a, b in zip(learned.deviation, base.deviation, strict=True))),
        CostChange(*np.hypot(learned.std, base.std).tolist()),
    )


def _combined(several: Sequence[Learned], usual: CostChange) -> Learned:
    """Effect on another model by several studies.

    Normal deviations of mean 0 and the usual size, measured by each model with its noise and its difference.
    """
    deviations = np.array([learned.deviation for learned in several])
    weights = 1 / (np.array([learned.std for learned in several]) ** 2 + np.square(MODELS_DIFFER))
    precision = 1 / np.square(usual) + weights.sum(0)
    std = np.minimum(usual, np.sqrt(1 / precision + np.square(MODELS_DIFFER)))
    return Learned(CostChange(*((weights * deviations).sum(0) / precision).tolist()), CostChange(*std.tolist()))
