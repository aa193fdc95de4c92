"""What a study taught of the device rather than of its model: effects of settings, and how peaks differ from estimates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from autotune.core.configuration import Value
from autotune.core.trial import Trial
from autotune.sampler.cost_model import CostModel
from autotune.sampler.observation import observed
from autotune.sampler.parameters import all_values
from autotune.sampler.physics import WarmStart
from autotune.sampler.prior import MIB, Effect, Prior
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, Work


@dataclass(frozen=True)
class Calibration:
    """effects: setting -> value -> what it changed against the baseline's value (which is there with zeros).
    offset_bytes: peak of the baseline less its estimate; None where nothing was estimated.
    """

    effects: Mapping[str, Mapping[Value, Effect]] = field(default_factory=dict)
    offset_bytes: float | None = None

    def to_dict(self) -> dict[str, Any]:
        # As pairs: JSON's names are texts, and values need not be.
        effects = {name: [[value, *effect] for value, effect in known.items()] for name, known in self.effects.items()}
        return {"effects": effects, "offset_bytes": self.offset_bytes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Calibration":
        effects = {
            name: {value: Effect(*map(float, effect)) for value, *effect in known}
            for name, known in data["effects"].items()
        }
        return cls(effects, data["offset_bytes"])


def calibrated(space: SearchSpace, knowledge: WarmStart, trials: Sequence[Trial]) -> Calibration:
    """What these trials taught; of settings only the values that were timed."""
    known = [observed(trial.configuration, trial.final) for trial in trials]
    timed = [one for one in known if one.micro_step_s is not None]
    if not timed or timed[0] != known[0] or known[0].configuration != space.baseline:
        return Calibration()
    base = space.baseline.values
    single = {
        (name, value): space.configuration({**base, name: value})
        for name in space.values
        if name != MICRO
        for value in dict.fromkeys(one.configuration.values[name] for one in timed)
    }
    # A micro-batch that had to change with the value would be taken for the value's effect.
    single = {one: made for one, made in single.items() if made.micro_batch_size == base[MICRO]}
    pool = list(dict.fromkeys([space.baseline, *single.values(), *(one.configuration for one in timed)]))
    estimate = knowledge.estimate or (lambda one: 0.0)
    model = CostModel(pool, all_values(space), space.baseline, knowledge.prior, estimate, knowledge.allowed_bytes)
    costs = model.costs(timed)
    effects: dict[str, dict[Value, Effect]] = {}
    beyond = costs.peak - model.estimates * MIB
    for (name, value), configuration in single.items():
        at = model.place[configuration]
        parts = (costs.log_micro_step, costs.log_optimizer_step, beyond if knowledge.estimate else 0 * beyond)
        effects.setdefault(name, {base[name]: Effect()})[value] = Effect(*(float(part[at] - part[0]) for part in parts))
    return Calibration(effects, float(beyond[0]) if knowledge.estimate else None)


def informed(prior: Prior, space: SearchSpace, past: Sequence[Calibration]) -> Prior:
    """The prior of a study on a device on which others ran before: their effects, averaged, in place of expected ones.

    Values that none of them tried keep what is expected of them.
    """
    effects, work, baseline = dict(prior.effects), dict(prior.work), space.baseline.values
    for name in (name for name in space.values if name != MICRO):
        of_setting, own = [one.effects.get(name, {}) for one in past], baseline[name]
        if seen := [known for known in of_setting if len(known) > 1 and own in known]:
            to_attrs = _averaged(seen, own)
            expected = _against(own, prior.effects.get(name, {}))
            # Bytes that follow from the model are this model's own.
            of_model = {value: effect.peak_bytes for value, effect in expected.items() if value in to_attrs}
            to_attrs |= {value: to_attrs[value]._replace(peak_bytes=peak) for value, peak in of_model.items()}
            effects[name] = {**expected, **to_attrs}
            known = dict(work.get(name, {}))
            # What was measured says it all: of the work no difference is left.
            work[name] = known | dict.fromkeys(known.keys() & to_attrs.keys(), known.get(own, Work()))
    offsets = [one.offset_bytes for one in past if one.offset_bytes is not None]
    memory = prior.memory
    if offsets:
        # Studies' offsets differ by more than chance where there are few of them.
        spread = max(float(np.std(offsets)), memory.offset_bytes / (1 + len(offsets)))
        memory = replace(memory, mean_offset_bytes=fmean(offsets), offset_bytes=spread)
    return replace(prior, effects=effects, work=work, memory=memory)


def _against(own: Value, known: Mapping[Value, Effect]) -> dict[Value, Effect]:
    """Effects against those of the baseline's own value, which are zeros where nothing is said of it."""
    zero = known.get(own, Effect())
    return {value: Effect(*(a - b for a, b in zip(effect, zero, strict=True))) for value, effect in known.items()}


def _averaged(seen: Sequence[Mapping[Value, Effect]], own: Value) -> dict[Value, Effect]:
    """Mean effects against the baseline's own value, which all of these know."""
    found: dict[Value, list[Effect]] = {}
    for known in seen:
        for value, effect in _against(own, known).items():
            found.setdefault(value, []).append(effect)
    return {value: Effect(*(fmean(part) for part in zip(*several, strict=True))) for value, several in found.items()}
