"""What a study teaches of its device, and how the next one starts from it."""

import json
import math
from dataclasses import replace

import pytest

from autotune.core import Configuration, Trial
from autotune.sampler.calibration import KNOWN as KNOWN_VALUE
from autotune.sampler.calibration import Calibration, calibrated, informed
from autotune.sampler.constants import FIRST_TRIED, MODELS_DIFFER
from autotune.sampler.physics import PhysicsSampler
from autotune.sampler.policy import Why
from autotune.sampler.prior import Learned, Prior
from autotune.sampler.warm_start import WarmStart
from autotune.space.settings import CostChange, WorkFactors
from tests.makers import ALLOWED, MIB, out_of_memory, space, standing_of
from tests.replay_probe import recorded

SPACE = space(checkpointing=("none", "full"), precision=("fp32", "bf16"))


def estimate(candidate: Configuration) -> float:
    return 100.0 * MIB + 10.0 * MIB * candidate.micro_batch_size


def trial(number: int, candidate: Configuration) -> Trial:
    """bf16 halves the seconds of a step and takes 30 MiB more; every peak lies 50 MiB above its estimate."""
    bf16 = candidate.values["precision"] == "bf16"
    peak = estimate(candidate) + 50 * MIB + 30 * MIB * bf16
    return Trial(number, candidate, recorded(candidate, 20.0 if bf16 else 10.0, int(peak), ALLOWED, spread=0.001))


def tried(*precisions: str) -> list[Trial]:
    ones = [SPACE.configuration({**SPACE.baseline.values, "precision": candidate}) for candidate in precisions]
    return [trial(number, candidate) for number, candidate in enumerate(ones)]


EXPECTED = Prior(
    half_speed=0.0, believed=1.0, work={"precision": {"fp32": WorkFactors(), "bf16": WorkFactors(arithmetic=0.6)}}
)
KNOWN = WarmStart(ALLOWED, estimate, EXPECTED)


def test_effects_and_offset_are_those_of_the_world() -> None:
    calibration = calibrated(SPACE, KNOWN, tried("fp32", "bf16"))
    learned = calibration.learned["precision"]["bf16"]
    assert learned.deviation.micro_step == pytest.approx(math.log(0.5 / 0.6), abs=0.1)
    assert learned.std.micro_step < 0.15
    assert learned.deviation.peak_bytes == pytest.approx(30 * MIB, abs=15 * MIB)
    assert calibration.offset_bytes == pytest.approx(50 * MIB, abs=15 * MIB)
    assert calibrated(SPACE, WarmStart(ALLOWED), tried("fp32", "bf16")).offset_bytes is None
    assert calibration.learned.keys() == {"precision"}, "only values that were timed"


def test_what_less_padding_saves_is_no_effect_of_the_value() -> None:
    """Grouped, this data's samples are padded to half as much: the next study's own data tells what that saves there."""
    among = space(batching=("random", "group_by_length"))
    grouped = among.configuration({**among.baseline.values, "batching": "group_by_length"})
    trials = [
        Trial(number, candidate, recorded(candidate, speed, int(estimate(candidate)), ALLOWED, spread=0.001))
        for number, (candidate, speed) in enumerate([(among.baseline, 10.0), (grouped, 20.0)])
    ]
    knowledge = replace(KNOWN, padded=lambda candidate: 0.5 if candidate == grouped else 1.0)
    learned = calibrated(among, knowledge, trials).learned["batching"]["group_by_length"]
    assert learned.deviation.micro_step == pytest.approx(0.0, abs=0.05)


def test_a_study_whose_baseline_was_not_timed_teaches_nothing() -> None:
    assert calibrated(SPACE, KNOWN, tried("bf16")) == Calibration()
    assert calibrated(SPACE, KNOWN, []) == Calibration()
    starved = Trial(0, SPACE.baseline, out_of_memory(SPACE.baseline))
    assert calibrated(SPACE, KNOWN, [starved, *tried("bf16")]) == Calibration()


def test_what_was_only_seen_together_stays_open() -> None:
    """bf16 halves a step here; its only probe was slow, with another micro-batch size: it is still tried."""
    both = SPACE.configuration({**SPACE.baseline.values, "precision": "bf16", "micro_batch_size": 1})
    slow = Trial(1, both, recorded(both, 8.0, int(estimate(both)) + 80 * MIB, ALLOWED, spread=0.001))
    alone, together = (calibrated(SPACE, KNOWN, [*tried("fp32"), other]) for other in (tried("fp32", "bf16")[1], slow))
    assert (
        together.learned["precision"]["bf16"].std.micro_step > 1.5 * alone.learned["precision"]["bf16"].std.micro_step
    )
    for past in ([], [together], [together] * 3):
        warm_start = WarmStart(ALLOWED, estimate, informed(EXPECTED, SPACE, past))
        sampler = PhysicsSampler(SPACE, warm_start)
        trials: list[Trial] = []
        while len(trials) < FIRST_TRIED:
            choice = sampler.choose(standing_of(trials))
            assert choice.configuration is not None
            assert choice.why is Why.NEW
            trials.append(trial(len(trials), choice.configuration))
        assert any(trial.configuration.values["precision"] == "bf16" for trial in trials)


PRECISE = CostChange(0.001, 0.001, MIB)


def taught(**values: CostChange) -> Calibration:
    learned = {value: Learned(effect, PRECISE if any(effect) else CostChange()) for value, effect in values.items()}
    return Calibration({"precision": learned})


def test_the_next_study_expects_the_mean_of_those_before() -> None:
    past = [
        replace(taught(fp32=CostChange(), bf16=CostChange(-0.6, 0.0, 10.0)), offset_bytes=40.0 * MIB),
        replace(taught(fp32=CostChange(), bf16=CostChange(-0.4, 0.2, 30.0)), offset_bytes=60.0 * MIB),
    ]
    prior = informed(Prior(), SPACE, past)
    learned = prior.learned["precision"]["bf16"]
    assert learned.deviation.micro_step == pytest.approx(-0.5, rel=0.15)
    assert learned.deviation.optimizer_step == pytest.approx(0.1, rel=0.15)
    assert prior.memory.mean_offset_bytes == 50.0 * MIB
    assert 10.0 * MIB <= prior.memory.offset_bytes < Prior().memory.offset_bytes
    assert informed(Prior(), SPACE, [taught(tf32=CostChange(), bf16=CostChange(-0.5))]) == Prior(), "not against fp32"


def test_the_more_models_agree_the_surer_is_the_next_study_but_never_surer_than_models_differ() -> None:
    stds = [
        informed(Prior(), SPACE, [taught(fp32=CostChange(), bf16=CostChange(-0.5))] * count).prior_std(
            "precision", "bf16", "fp32"
        )
        for count in (0, 1, 3, 100)
    ]
    assert stds == sorted(stds, reverse=True)
    assert stds[-1] * Prior().micro_step.value >= MODELS_DIFFER.micro_step


def test_it_goes_through_json_and_back() -> None:
    calibration = Calibration(
        {"workers": {0: KNOWN_VALUE, 2: Learned(CostChange(0.1, 0.0, 5.0), PRECISE)}, "pin": {True: KNOWN_VALUE}}, 3.0
    )
    assert Calibration.from_dict(json.loads(json.dumps(calibration.to_dict()))) == calibration
