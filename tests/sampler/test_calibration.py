"""What a study teaches of its device, and how the next one starts from it."""

import json
import math

import pytest

from autotune.core import Configuration, Trial
from autotune.probe.replay import recorded
from autotune.sampler.calibration import Calibration, calibrated, informed
from autotune.sampler.physics import WarmStart
from autotune.sampler.prior import UNSURE, Effect, Prior
from autotune.space.settings import Work
from tests.makers import ALLOWED, MIB, out_of_memory, space

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


KNOWN = WarmStart(ALLOWED, estimate)


def test_effects_and_offset_are_those_of_the_world() -> None:
    to_attrs = calibrated(SPACE, KNOWN, tried("fp32", "bf16"))
    effect = to_attrs.effects["precision"]["bf16"]
    assert effect.micro_step == pytest.approx(-0.69, abs=0.1)
    assert effect.peak_bytes == pytest.approx(30 * MIB, abs=15 * MIB)
    assert to_attrs.offset_bytes == pytest.approx(50 * MIB, abs=15 * MIB)


def test_only_values_that_were_timed_are_taught() -> None:
    to_attrs = calibrated(SPACE, KNOWN, tried("fp32", "bf16"))
    assert to_attrs.effects["checkpointing"] == {"none": Effect()}
    assert set(to_attrs.effects["precision"]) == {"fp32", "bf16"}


def test_a_study_whose_baseline_was_not_timed_teaches_nothing() -> None:
    assert calibrated(SPACE, KNOWN, tried("bf16")) == Calibration()
    assert calibrated(SPACE, KNOWN, []) == Calibration()
    starved = Trial(0, SPACE.baseline, out_of_memory(SPACE.baseline))
    assert calibrated(SPACE, KNOWN, [starved, *tried("bf16")]) == Calibration()


def test_without_an_estimate_there_is_no_offset() -> None:
    to_attrs = calibrated(SPACE, WarmStart(ALLOWED), tried("fp32", "bf16"))
    assert to_attrs.offset_bytes is None
    assert to_attrs.effects["precision"]["bf16"].peak_bytes == 0.0


def test_the_next_study_expects_the_mean_of_those_before() -> None:
    past = [
        Calibration({"precision": {"fp32": Effect(), "bf16": Effect(-0.6, 0.0, 10.0)}}, 40.0 * MIB),
        Calibration({"precision": {"fp32": Effect(), "bf16": Effect(-0.4, 0.2, 30.0)}}, 60.0 * MIB),
    ]
    prior = informed(Prior(), SPACE, past)
    assert prior.effects["precision"]["bf16"] == pytest.approx(Effect(-0.5, 0.1, 20.0))
    assert prior.memory.mean_offset_bytes == 50.0 * MIB
    assert 10.0 * MIB <= prior.memory.offset_bytes < Prior().memory.offset_bytes


def test_studies_with_other_baselines_agree_on_differences() -> None:
    past = [
        Calibration({"precision": {"fp32": Effect(), "bf16": Effect(-0.5)}}),
        Calibration({"precision": {"bf16": Effect(), "fp32": Effect(0.5)}}),
    ]
    effects = informed(Prior(), SPACE, past).effects["precision"]
    assert effects == {"fp32": Effect(), "bf16": Effect(-0.5)}


def test_what_is_not_known_against_the_baselines_own_value_is_left_aside() -> None:
    past = [Calibration({"precision": {"tf32": Effect(), "bf16": Effect(-0.5)}})]
    assert informed(Prior(), SPACE, past) == Prior()


def test_values_that_no_study_saw_keep_what_is_expected_of_their_work_against_the_baselines() -> None:
    """The baseline's own takes twice the arithmetic of what works are told against."""
    work = {"precision": {"fp32": Work(2.0), "bf16": Work(0.5), "tf32": Work(0.25)}}
    past = [Calibration({"precision": {"fp32": Effect(), "bf16": Effect(-0.5)}})]
    prior = informed(Prior(work=work), SPACE, past)
    assert prior.work == {"precision": {"fp32": Work(2.0), "bf16": Work(2.0), "tf32": Work(0.25)}}
    assert prior.effects["precision"] == {"fp32": Effect(), "bf16": Effect(-0.5)}


def test_values_that_no_study_saw_keep_what_is_expected_of_their_effects_against_the_baselines() -> None:
    expected = {"precision": {"fp32": Effect(0.1, 0.0, 7.0), "bf16": Effect(0.2, 0.0, 9.0), "tf32": Effect(0.4)}}
    past = [Calibration({"precision": {"fp32": Effect(), "bf16": Effect(-0.5, 0.2, 99.0)}})]
    effects = informed(Prior(effects=expected), SPACE, past).effects["precision"]
    assert effects["fp32"] == Effect()
    assert effects["bf16"] == Effect(-0.5, 0.2, 2.0), "bytes that follow from the model are this model's own"
    assert effects["tf32"] == pytest.approx(Effect(0.3, 0.0, -7.0))


def test_what_other_models_showed_may_not_come_with_this_one() -> None:
    prior = informed(Prior(), SPACE, [Calibration({"precision": {"fp32": Effect(), "bf16": Effect(-0.5)}})])
    assert prior.prior_std("precision", "bf16", "fp32") == pytest.approx(math.hypot(1, UNSURE * 0.5 / 0.1))
    assert prior.prior_std("precision", "fp32", "fp32") == prior.prior_std("precision", "tf32", "fp32") == 1.0


def test_nothing_past_changes_nothing() -> None:
    assert informed(Prior(), SPACE, []) == Prior()
    assert informed(Prior(), SPACE, [Calibration({"precision": {"fp32": Effect()}})]) == Prior()


def test_it_goes_through_json_and_back() -> None:
    to_attrs = Calibration({"workers": {0: Effect(), 2: Effect(0.1, 0.0, 5.0)}, "pin": {True: Effect()}}, 3.0)
    assert Calibration.from_dict(json.loads(json.dumps(to_attrs.to_dict()))) == to_attrs
