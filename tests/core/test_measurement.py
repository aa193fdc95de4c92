"""The raw facts of a probe, and what follows from them."""

import json
from dataclasses import replace

import pytest

from autotune.core.interval import ratio_interval
from autotune.core.measurement import INPUT_BOUND, LEAST_EXCESS, Measurement, Outcome, pooled
from autotune.core.step import Step
from autotune.core.warning import WarningKind
from tests.makers import ALLOWED, GIB, MIB, completed, configuration, ended, out_of_memory, step, warned


def of_steps(*steps: Step, **facts: object) -> Measurement:
    return Measurement(Outcome.COMPLETED, steps=steps, **facts)  # type: ignore[arg-type]


# Evidence -------------------------------------------------------------------------------------------------------


def test_a_completed_measurement_without_a_timed_step_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="timed step"):
        Measurement(Outcome.COMPLETED)
    with pytest.raises(ValueError, match="timed step"):
        Measurement.from_dict(completed().to_dict() | {"steps": []})


@pytest.mark.parametrize("outcome", [first for first in Outcome if first is not Outcome.COMPLETED])
def test_any_other_end_needs_no_step_and_has_no_speed(outcome: Outcome) -> None:
    measured = ended(outcome)
    times = (
        "step_time_s",
        "micro_step_time_s",
        "forward_time_s",
        "backward_time_s",
        "overhead_time_s",
        "data_wait_share",
    )
    assert {getattr(measured, name) for name in ("samples_per_second", "tokens_per_second", *times)} == {None}
    assert measured.fits == (LEAST_EXCESS if outcome is Outcome.OUT_OF_MEMORY else 1.0)
    assert not measured.feasible
    assert not measured.input_bound


def test_a_measurement_survives_json() -> None:
    whole = completed(
        observed_warnings=warned("throttled"),
        rounds=(3, 3),
        stage_peak_bytes={"build": 1, "forward": 2},
        system_state={"temperature_c": 61, "throttle_reasons": ["heat"]},
        asked={"precision": "fp32"},
        joules=12.5,
    )
    for measured in (whole, out_of_memory(configuration()), ended(Outcome.CRASHED, log_tail="/home/x", where="build")):
        again = Measurement.from_dict(json.loads(json.dumps(measured.to_dict())))
        assert again == measured
        assert not again.log_tail


# Composed speed and times ---------------------------------------------------------------------------------------


def test_tokens_are_told_with_padding_and_without() -> None:
    measured = of_steps(*[step(2.0, tokens=100, non_padding_tokens=60)] * 3, data_parallel_size=2)
    assert measured.tokens_per_second == pytest.approx(100.0)
    assert measured.non_padding_tokens_per_second == pytest.approx(60.0)
    assert completed().tokens_per_second is completed().non_padding_tokens_per_second is None, "samples without tokens"


def composed_of_three() -> Measurement:
    """Three micro-steps of eight asked for: wait, forward, backward, optimizer and a rest of 0.25 s once a step."""
    ran = step(
        0.6 + 3 * 1.0 + 3 * 2.0 + 1.0 + 0.25,
        data_wait_s=0.6,
        first_s=3.0,
        middle_s=3.0,
        last_s=4.0,
        optimizer_s=1.0,
        samples=12,
        forward_s=3.0,
        backward_s=6.0,
        middle_forward_s=1.0,
        middle_backward_s=2.0,
    )
    return of_steps(ran, ran, ran, accumulation_steps=8, accumulation_steps_run=3)


def test_the_parts_of_a_composed_step_are_told_and_add_up() -> None:
    measured = composed_of_three()
    parts = (
        measured.data_wait_s,
        measured.forward_time_s,
        measured.backward_time_s,
        measured.optimizer_step_time_s,
        measured.overhead_time_s,
    )
    assert parts == pytest.approx((1.6, 8.0, 16.0, 1.0, 0.25))
    assert measured.step_time_s == pytest.approx(1.6 + 8.0 + 16.0 + 1.0 + 0.25)
    assert measured.micro_step_time_s == pytest.approx(3.0)
    assert measured.samples_per_second == pytest.approx(32 / measured.step_time_s)


@pytest.mark.parametrize(("wait", "bound"), [(0.0, False), (0.09, False), (0.11, True), (0.9, True)])
def test_a_training_that_waits_a_tenth_of_its_time_for_data_is_input_bound(wait: float, bound: bool) -> None:
    measured = of_steps(*[step(2.0, data_wait_s=2.0 * wait)] * 3)
    assert measured.data_wait_share == pytest.approx(wait)
    assert measured.input_bound is bound
    assert INPUT_BOUND == 0.10


# Energy ---------------------------------------------------------------------------------------------------------


def test_energy_a_sample_is_that_of_the_steps_that_ran() -> None:
    measured = of_steps(step(2.0), step(2.0), joules=320.0)
    assert measured.joules_per_sample == pytest.approx(320.0 / 16)
    assert replace(measured, joules=None).joules_per_sample is None
    assert ended(Outcome.CRASHED, joules=1.0).joules_per_sample is None


def test_energy_is_composed_as_the_speed_is_at_the_power_that_was_measured() -> None:
    measured = replace(composed_of_three(), joules=3 * 10.85 * 200.0)  # 200 watts
    assert measured.joules_per_sample == pytest.approx(200.0 * 26.85 / 32)
    assert measured.samples_per_second is not None
    assert measured.joules_per_sample == pytest.approx(200.0 / measured.samples_per_second)


# Memory ---------------------------------------------------------------------------------------------------------


def test_the_peak_is_the_device_s_figure_else_reserved_and_context() -> None:
    base = completed(peak_bytes=700 * MIB)
    assert replace(base, peak_reserved_bytes=9, context_bytes=9).peak_bytes == 700 * MIB
    reserved = replace(base, peak_device_bytes=None, peak_reserved_bytes=600 * MIB)
    assert reserved.peak_bytes == 600 * MIB
    assert replace(reserved, context_bytes=50 * MIB).peak_bytes == 650 * MIB
    assert replace(base, peak_device_bytes=None).peak_bytes is None
    assert replace(base, peak_file_bytes=150 * MIB).peak_bytes == 550 * MIB, "pages of library files"
    more = {"accumulation_steps": 10, "accumulation_steps_run": 3, "micro_batch_bytes": MIB}
    assert replace(base, **more).peak_bytes == 707 * MIB, "micro-batches that were not run"


def test_what_completed_fits_by_its_peak() -> None:
    assert completed(peak_bytes=ALLOWED // 2).fits == pytest.approx(-0.5)
    exact = completed(peak_bytes=ALLOWED)
    assert exact.fits == 0
    assert exact.feasible
    above = completed(peak_bytes=ALLOWED, accumulation_steps=10, accumulation_steps_run=3, micro_batch_bytes=50 * MIB)
    assert above.fits == pytest.approx(0.35)
    assert not above.feasible
    assert completed(peak_device_bytes=None).fits == 0
    assert completed(allowed_bytes=None).feasible


def test_what_completed_only_because_the_allocator_tried_again_does_not_fit() -> None:
    roomy = completed(peak_bytes=ALLOWED // 2, allocator_retries=1)
    assert roomy.fits == LEAST_EXCESS > 0
    assert not roomy.feasible
    assert roomy.samples_per_second == pytest.approx(10.0), "how fast it was is known all the same"
    far = completed(peak_bytes=ALLOWED, accumulation_steps=10, accumulation_steps_run=3, micro_batch_bytes=50 * MIB)
    assert replace(far, allocator_retries=1).fits == far.fits == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("held", "refused", "fits"), [(ALLOWED, ALLOWED // 2, 0.5), (ALLOWED // 2, None, 0.01), (None, 3 * ALLOWED, 2.0)]
)
def test_what_ran_out_of_memory_misses_by_what_it_wanted(held: int | None, refused: int | None, fits: float) -> None:
    measured = ended(Outcome.OUT_OF_MEMORY, held_bytes=held, refused_bytes=refused)
    assert measured.fits == pytest.approx(fits)
    assert replace(measured, allowed_bytes=None).fits == 0.01


# Warnings ---------------------------------------------------------------------------------------------------------


def test_a_measurement_warnings_itself() -> None:
    assert completed().warnings == ()
    assert completed(observed_warnings=warned("blender")).warnings == warned("blender")
    assert [*map(str, completed(steps=(step(), step())).warnings)] == ["only 2 timed steps"]
    assert completed(spread=0.3).warnings[0].kind is WarningKind.WIDE_INTERVAL
    assert completed(spread=0.3, ended_early=True).warnings == ()


@pytest.mark.parametrize(("factor", "text"), [(1.5, "33% slower"), (0.5, "100% faster")])
def test_a_speed_that_drifts_is_warned(factor: float, text: str) -> None:
    half = [step(1.0 + 0.001 * n) for n in range(6)]
    measured = of_steps(*half, *[step(factor * first.seconds) for first in half])
    assert f"the second half of the timed steps ran {text}" in map(str, measured.warnings)


# Rounds ---------------------------------------------------------------------------------------------------------


def test_rounds_are_pooled_into_all_steps_the_highest_peak_and_every_warning() -> None:
    first = completed(
        samples_per_second=10.0, peak_bytes=500 * MIB, observed_warnings=warned("a", "b"), probe_seconds=1.0
    )
    second = completed(
        samples_per_second=20.0, peak_bytes=600 * MIB, observed_warnings=warned("b", "c"), probe_seconds=2.0
    )
    measured = pooled([first, second])
    assert measured.steps == (*first.steps, *second.steps)
    assert measured.rounds == (6, 6)
    assert measured.peak_bytes == 600 * MIB
    assert measured.observed_warnings == warned("a", "b", "c")
    assert measured.probe_seconds == 3.0
    assert measured.samples_per_second == pytest.approx(2 * 48 / (4.8 + 2.4))
    assert pooled([first]) == replace(first, rounds=(6,))


def test_counts_of_rounds_are_added_and_their_energy_too_where_all_know_it() -> None:
    first = completed(allocator_retries=1, skipped_steps=2, joules=10.0, untimed_steps=3, repeated_because=warned("a"))
    second = completed(
        allocator_retries=2, skipped_steps=0, joules=20.0, untimed_steps=4, repeated_because=warned("b", "a")
    )
    measured = pooled([first, second])
    assert (measured.allocator_retries, measured.skipped_steps, measured.untimed_steps) == (3, 2, 7)
    assert measured.joules == 30.0
    assert measured.repeated_because == warned("a", "b")
    assert pooled([first, replace(second, joules=None)]).joules is None
    assert not measured.feasible


def test_the_peak_of_rounds_is_the_highest_that_one_of_them_had() -> None:
    """Not one's resident memory less another's library files."""
    first = completed(peak_bytes=700 * MIB, peak_file_bytes=300 * MIB, stage_peak_bytes={"build": 1, "forward": 9})
    second = completed(peak_bytes=600 * MIB, peak_file_bytes=100 * MIB, stage_peak_bytes={"build": 2, "forward": 8})
    for rounds in ([first, second], [second, first]):
        measured = pooled(rounds)
        assert measured.peak_bytes == 500 * MIB
        assert measured.stage_peak_bytes == {"build": 2, "forward": 9}
    reserved = [
        replace(r, peak_device_bytes=None, peak_file_bytes=0, peak_reserved_bytes=n * GIB, context_bytes=MIB)
        for n, r in ((3, first), (2, second))
    ]
    assert pooled(reserved).peak_bytes == 3 * GIB + MIB


def rounds_at(*speeds: float, spread: float = 0.001) -> list[Measurement]:
    return [completed(samples_per_second=speed, spread=spread) for speed in speeds]


def test_from_three_rounds_on_their_own_differences_give_the_interval() -> None:
    apart = rounds_at(10.0, 10.5, 11.0)
    speed = pooled(apart).samples_per_second
    assert speed is not None
    counts, seconds = [6 * 48.0] * 3, [sum(step.seconds for step in first.steps) for first in apart]
    expected = ratio_interval(counts, seconds, memory=0.5)
    assert (speed.low, speed.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert speed.relative_width > 0.2, "three rounds that differ say little, however many steps each had"
    agreeing = pooled(rounds_at(10.0, 10.0, 10.0, spread=0.1)).samples_per_second
    assert agreeing is not None
    assert agreeing.relative_width < 1e-6
    two = pooled(rounds_at(10.0, 11.0))
    expected = ratio_interval([48.0] * 12, [step.seconds for step in two.steps])
    assert two.samples_per_second is not None
    assert two.samples_per_second.relative_width == pytest.approx(expected.relative_width), "of two, the steps"


def test_rounds_of_few_micro_steps_are_pooled_as_if_they_had_run_all() -> None:
    micro = step(3.0, first_s=1.0, middle_s=1.0, last_s=1.0, samples=24, tokens=48)
    facts = {"peak_device_bytes": 100 * MIB, "micro_batch_bytes": MIB, "joules": 90.0}
    few = replace(completed(configuration(8, 96)), steps=(micro,) * 3, accumulation_steps_run=3, **facts)
    whole = replace(few, steps=tuple(few.composed_steps), accumulation_steps_run=12, joules=360.0)
    measured = pooled([whole, few, few])
    assert {(each.seconds, each.samples, each.tokens) for each in measured.steps} == {(12.0, 96, 192)}
    assert measured.samples_per_second == few.samples_per_second == 8.0
    assert measured.micro_step_time_s == pytest.approx(few.micro_step_time_s)
    assert (measured.peak_bytes, few.peak_bytes) == (109 * MIB, 109 * MIB)
    assert measured.joules == pytest.approx(3 * 360.0)
    assert measured.joules_per_sample == pytest.approx(few.joules_per_sample)
    assert not measured.is_composed


def test_rounds_of_another_accumulation_do_not_mix() -> None:
    with pytest.raises(ValueError, match="accumulation"):
        pooled([completed(), completed(accumulation_steps=3)])
    with pytest.raises(ValueError, match="accumulation"):
        pooled([])


def test_a_process_begins_in_what_its_steps_leave_of_it() -> None:
    measured = completed(steps=(step(1.0),) * 4, untimed_steps=2, probe_seconds=10.0)
    assert measured.starting_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("allocator_retries", -1), ("peak_reserved_bytes", -1), ("probe_seconds", float("inf"))),
        *(("joules", float("nan")), ("compile_s", 1e300), ("stage_peak_bytes", {"forward": -1})),
    ],
)
def test_a_record_with_a_number_that_nothing_measures_is_refused(name: str, value: object) -> None:
    data = completed().to_dict()
    assert Measurement.from_dict(data) == completed()
    with pytest.raises(ValueError, match="was not measured"):
        Measurement.from_dict(data | {name: value})
    with pytest.raises(ValueError, match="was not measured"):
        Measurement.from_dict(data | {"steps": [step(-1.0).to_dict()]})
