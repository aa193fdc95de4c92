"""Calibration: what a study shows of the device rather than of its model, for the prior of later studies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from autotune.core import Trial, Value
from autotune.sampler.cost_model import CostModel
from autotune.sampler.observation import observed
from autotune.sampler.parameters import all_values
from autotune.sampler.physics import WarmStart
from autotune.sampler.prior import MIB, Effect, Prior
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, Work


@dataclass(frozen=True)
class Calibration:
    """Effects of settings, and how peaks differ from estimates."""

    effects: Mapping[str, Mapping[Value, Effect]] = field(default_factory=dict)  # against the baseline's value
    offset_bytes: float | None = None  # peak of the baseline less its estimate; None where nothing was estimated

    def to_dict(self) -> dict[str, Any]:
        # As pairs: JSON's names are texts, and values need not be.
        effects = {
            name: [[value, *effect] for value, effect in values.items()] for name, values in self.effects.items()
        }
        return {"effects": effects, "offset_bytes": self.offset_bytes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Calibration":
        effects = {
            name: {value: Effect(*map(float, effect)) for value, *effect in rows}
            for name, rows in data["effects"].items()
        }
        return cls(effects, data["offset_bytes"])


def calibrated(space: SearchSpace, knowledge: WarmStart, trials: Sequence[Trial]) -> Calibration:
    """The calibration of these trials, with the settings' values that were timed."""
    observations = [observed(trial.configuration, trial.final) for trial in trials]
    timed = [seen for seen in observations if seen.micro_step_s is not None]
    if not timed or timed[0] != observations[0] or timed[0].configuration != space.baseline:
        return Calibration()
    base = space.baseline.values
    single = {
        (name, value): space.configuration({**base, name: value})
        for name in space.values
        if name != MICRO
        for value in dict.fromkeys(seen.configuration.values[name] for seen in timed)
    }
    # A micro-batch that had to change with the value would be taken for the value's effect.
    single = {key: changed for key, changed in single.items() if changed.micro_batch_size == base[MICRO]}
    pool = list(dict.fromkeys([space.baseline, *single.values(), *(seen.configuration for seen in timed)]))
    estimate = knowledge.estimate or (lambda configuration: 0.0)
    model = CostModel(pool, all_values(space), space.baseline, knowledge.prior, estimate, knowledge.allowed_bytes)
    costs = model.costs(timed)
    effects: dict[str, dict[Value, Effect]] = {}
    excess = costs.peak - model.estimates * MIB
    parts = (costs.log_micro_step, costs.log_optimizer_step, excess if knowledge.estimate else 0 * excess)
    for (name, value), configuration in single.items():
        place = model.place[configuration]
        effect = Effect(*(float(part[place] - part[0]) for part in parts))
        effects.setdefault(name, {base[name]: Effect()})[value] = effect
    return Calibration(effects, float(excess[0]) if knowledge.estimate else None)


def informed(prior: Prior, space: SearchSpace, past: Sequence[Calibration]) -> Prior:
    """The prior of a study on a device with past studies: the means of their effects in place of the expected ones.

    Values that none of them tried keep their expected effects.
    """
    effects, work, baseline = dict(prior.effects), dict(prior.work), space.baseline.values
    for name in (name for name in space.values if name != MICRO):
        base = baseline[name]
        of_setting = [calibration.effects.get(name, {}) for calibration in past]
        if measured := [values for values in of_setting if len(values) > 1 and base in values]:
            means = _means(measured, base)
            expected = _against(base, prior.effects.get(name, {}))
            # Bytes that follow from the model are this model's own.
            for value in expected.keys() & means.keys():
                means[value] = means[value]._replace(peak_bytes=expected[value].peak_bytes)
            effects[name] = {**expected, **means}
            works = dict(work.get(name, {}))
            # What was measured includes the work: no difference of it is left.
            work[name] = works | dict.fromkeys(works.keys() & means.keys(), works.get(base, Work()))
    offsets = [calibration.offset_bytes for calibration in past if calibration.offset_bytes is not None]
    memory = prior.memory
    if offsets:
        # Studies' offsets differ by more than chance where there are few of them.
        spread = max(float(np.std(offsets)), memory.offset_bytes / (1 + len(offsets)))
        memory = replace(memory, mean_offset_bytes=fmean(offsets), offset_bytes=spread)
    return replace(prior, effects=effects, work=work, memory=memory)


def _against(base: Value, effects: Mapping[Value, Effect]) -> dict[Value, Effect]:
    """Effects against those of the baseline's value, which are zeros where it has none."""
    zero = effects.get(base, Effect())
    return {value: Effect(*(a - b for a, b in zip(effect, zero, strict=True))) for value, effect in effects.items()}


def _means(measured: Sequence[Mapping[Value, Effect]], base: Value) -> dict[Value, Effect]:
    """Mean effects against the baseline's value, which all of these have."""
    effects: dict[Value, list[Effect]] = {}
    for values in measured:
        for value, effect in _against(base, values).items():
            effects.setdefault(value, []).append(effect)
    return {value: Effect(*map(fmean, zip(*several, strict=True))) for value, several in effects.items()}
