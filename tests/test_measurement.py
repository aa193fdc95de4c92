"""The raw facts of a probe, and what follows from them."""

import copy
import json
import math
import pickle
import random
from dataclasses import replace

import pytest
from scipy import stats

from autotune.measurement import Interval, Measurement, Outcome, Step, pooled, ratio_interval, student_t_975
from tests.makers import ALLOWED, MIB, completed, configuration, ended, out_of_memory


def step(seconds: float = 1.0, **facts: float) -> Step:
    known = {"data_wait_s": 0.0, "first_s": 0.0, "middle_s": 0.0, "last_s": seconds, "optimizer_s": 0.0}
    return Step(seconds=seconds, **{"samples": 8, "tokens": 0, **known, **facts})  # type: ignore[arg-type]


# Evidence -------------------------------------------------------------------------------------------------------


def test_a_completed_measurement_without_a_timed_step_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="timed step"):
        Measurement(Outcome.COMPLETED)
    with pytest.raises(ValueError, match="timed step"):
        Measurement.from_dict(completed().to_dict() | {"steps": []})


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.COMPLETED])
def test_any_other_end_needs_no_step_and_has_no_speed(outcome: Outcome) -> None:
    made = ended(outcome)
    assert made.samples_per_second is made.tokens_per_second is made.step_time_s is made.micro_step_time_s is None
    assert not made.feasible


@pytest.mark.parametrize(
    "made",
    [
        completed(settings={"precision": "fp32"}, asked={"precision": "fp32"}, seconds_to_first_line=0.05),
        completed(observed_doubts=("throttled",), ended_early=True, context_bytes=5, peak_reserved_bytes=7),
        out_of_memory(configuration()),
        ended(Outcome.CRASHED, log_tail="Traceback\n  line\n", where="build"),
    ],
)
def test_a_measurement_survives_json(made: Measurement) -> None:
    assert Measurement.from_dict(json.loads(json.dumps(made.to_dict()))) == made


# Composed steps -------------------------------------------------------------------------------------------------


def test_a_step_of_three_micro_steps_becomes_one_of_many() -> None:
    ran = step(10.0, data_wait_s=0.6, first_s=2.0, middle_s=3.0, last_s=4.4, optimizer_s=1.0, samples=12, tokens=120)
    made = ran.composed(3, 8)
    # first + 6 x middle + last, and waiting batch by batch
    assert made.seconds == pytest.approx(0.6 / 3 * 8 + 2.0 + 6 * 3.0 + 4.4)
    assert made.data_wait_s == pytest.approx(1.6)
    assert (made.samples, made.tokens) == (32, 320)


def test_what_the_trainer_does_once_a_step_stays_once() -> None:
    overhead = 0.5
    ran = step(2.0 + 3.0 + 4.0 + overhead, first_s=2.0, middle_s=3.0, last_s=4.0, samples=3)
    assert ran.composed(3, 4).seconds == pytest.approx(2.0 + 2 * 3.0 + 4.0 + overhead)


def test_a_step_that_ran_as_asked_stays_as_it_is() -> None:
    ran = step(3.0, first_s=1.0, last_s=2.0)
    assert ran.composed(2, 2) is ran


def test_speed_and_times_speak_of_the_accumulation_that_was_asked_for() -> None:
    ran = step(3.0, first_s=1.0, middle_s=1.0, last_s=1.0, optimizer_s=0.4, samples=12, tokens=24)
    made = Measurement(Outcome.COMPLETED, steps=(ran, ran), accumulation_steps=6, accumulation_steps_run=3)
    assert made.step_time_s == pytest.approx(6.0)
    assert made.samples_per_second == pytest.approx(24 / 6.0)
    assert made.tokens_per_second == pytest.approx(48 / 6.0)
    assert made.micro_step_time_s == pytest.approx((3.0 - 0.4) / 3)
    assert made.optimizer_step_time_s == pytest.approx(0.4)


def test_every_rank_counts_towards_the_speed() -> None:
    one = Measurement(Outcome.COMPLETED, steps=(step(2.0), step(2.0)))
    assert replace(one, data_parallel_size=4).samples_per_second == pytest.approx(4 * 8 / 2.0)


def test_there_are_no_tokens_where_samples_have_none() -> None:
    assert completed().tokens_per_second is None


# Memory ---------------------------------------------------------------------------------------------------------


def test_the_peak_is_the_device_s_figure_else_reserved_and_context() -> None:
    known = completed(peak_bytes=700 * MIB)
    assert replace(known, peak_reserved_bytes=9, context_bytes=9).peak_bytes == 700 * MIB
    reserved = replace(known, peak_device_bytes=None, peak_reserved_bytes=600 * MIB)
    assert reserved.peak_bytes == 600 * MIB
    assert replace(reserved, context_bytes=50 * MIB).peak_bytes == 650 * MIB
    assert replace(known, peak_device_bytes=None).peak_bytes is None


def test_micro_batches_that_were_not_run_are_added_to_the_peak() -> None:
    made = completed(peak_bytes=700 * MIB, accumulation_steps=10, accumulation_steps_run=3, micro_batch_bytes=MIB)
    assert made.peak_bytes == 707 * MIB


def test_what_completed_fits_by_its_peak() -> None:
    assert completed(peak_bytes=ALLOWED // 2).fits == pytest.approx(-0.5)
    exact = completed(peak_bytes=ALLOWED)
    assert exact.fits == 0
    assert exact.feasible
    above = completed(peak_bytes=ALLOWED, accumulation_steps=10, accumulation_steps_run=3, micro_batch_bytes=50 * MIB)
    assert above.fits == pytest.approx(0.35)
    assert not above.feasible


def test_what_completed_without_a_figure_is_taken_to_fit() -> None:
    assert completed(peak_device_bytes=None).fits == 0
    assert completed(allowed_bytes=None).feasible


@pytest.mark.parametrize(
    ("held", "refused", "fits"),
    [
        (ALLOWED, ALLOWED // 2, 0.5),
        (ALLOWED // 2, ALLOWED // 4, 0.01),
        (None, None, 0.01),
        (ALLOWED, None, 0.01),
        (None, 3 * ALLOWED, 2.0),
    ],
)
def test_what_ran_out_of_memory_misses_by_what_it_wanted(held: int | None, refused: int | None, fits: float) -> None:
    made = ended(Outcome.OUT_OF_MEMORY, held_bytes=held, refused_bytes=refused)
    assert made.fits == pytest.approx(fits)
    assert replace(made, allowed_bytes=None).fits == 0.01


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.COMPLETED, Outcome.OUT_OF_MEMORY)])
def test_any_other_infeasible_end_misses_by_one(outcome: Outcome) -> None:
    assert ended(outcome).fits == 1.0


# Doubts ---------------------------------------------------------------------------------------------------------


def test_a_measurement_doubts_itself() -> None:
    assert completed().doubts == ()
    assert completed(observed_doubts=("throttled",)).doubts == ("throttled",)
    assert completed(steps=(step(), step())).doubts == ("only 2 timed step(s)",)
    assert "wide" in completed(spread=0.3).doubts[0]
    assert completed(spread=0.3, ended_early=True).doubts == ()


# Rounds ---------------------------------------------------------------------------------------------------------


def test_rounds_are_pooled_into_all_steps_the_highest_peak_and_every_doubt() -> None:
    one = completed(samples_per_second=10.0, peak_bytes=500 * MIB, observed_doubts=("a", "b"), probe_seconds=1.0)
    two = completed(samples_per_second=20.0, peak_bytes=600 * MIB, observed_doubts=("b", "c"), probe_seconds=2.0)
    made = pooled([one, two])
    assert made.steps == (*one.steps, *two.steps)
    assert made.peak_bytes == 600 * MIB
    assert made.observed_doubts == ("a", "b", "c")
    assert made.probe_seconds == 3.0
    assert made.samples_per_second == pytest.approx(2 * 48 / (4.8 + 2.4))
    assert pooled([one]) == one


def test_rounds_of_another_accumulation_do_not_mix() -> None:
    with pytest.raises(ValueError, match="accumulation"):
        pooled([completed(), completed(accumulation_steps_run=3)])
    with pytest.raises(ValueError, match="accumulation"):
        pooled([])


# The interval ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "spread"), [(5, 0.05), (8, 0.2), (24, 0.05), (24, 0.3)])
def test_the_interval_covers_the_true_speed_in_95_of_100_cases(steps: int, spread: float) -> None:
    draw = random.Random(steps)
    runs, held = 3000, 0
    for _ in range(runs):
        seconds = [max(0.01, draw.gauss(1.0, spread)) for _ in range(steps)]
        interval = ratio_interval([8] * steps, seconds)
        held += interval.low <= 8.0 <= interval.high
    # Widened for the correlation that chance alone shows in few steps, hence rather above.
    assert 0.92 <= held / runs <= 0.985


def test_steps_of_different_size_share_one_speed() -> None:
    draw = random.Random(1)
    counts = [draw.randint(4, 40) for _ in range(30)]
    interval = ratio_interval(counts, [count / 16 for count in counts])
    assert interval == pytest.approx(16)
    assert interval.high - interval.low < 1e-6


def test_steps_that_resemble_their_neighbours_widen_the_interval() -> None:
    slow_then_fast = [1.1] * 10 + [0.9] * 10
    alternating = [1.1, 0.9] * 10
    assert (
        ratio_interval([8] * 20, slow_then_fast).relative_width
        > 2 * ratio_interval([8] * 20, alternating).relative_width
    )


def test_one_step_alone_has_an_endless_interval() -> None:
    interval = ratio_interval([8], [2.0])
    assert (interval.value, interval.low, interval.high) == (4.0, 0.0, math.inf)


def test_the_interval_never_goes_below_nothing() -> None:
    assert ratio_interval([8, 8], [0.1, 10.0]).low == 0.0


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 7, 10, 23, 59, 500])
def test_student_s_quantile_is_right_within_one_percent(degrees: int) -> None:
    assert student_t_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=0.01)


def test_an_interval_is_a_number() -> None:
    speed = Interval(4.0, 3.5, 4.5)
    assert speed + 1 == 5
    assert speed == 4.0
    assert f"{speed:.2f}" == "4.00"
    assert max([Interval(1.0, 0, 2), speed]).high == 4.5
    assert speed.relative_width == pytest.approx(0.25)
    assert json.dumps(speed) == "4.0"
    assert Interval(0.0, 0.0, 1.0).relative_width == math.inf


@pytest.mark.parametrize("again", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, copy.copy])
def test_an_interval_keeps_its_ends_when_copied(again: object) -> None:
    made = again(Interval(4.0, 3.5, 4.5))  # type: ignore[operator]
    assert (type(made), made.value, made.low, made.high) == (Interval, 4.0, 3.5, 4.5)
