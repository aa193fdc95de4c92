"""One step and its parts: composed from the micro-steps that were run, and always adding up."""

import random

import pytest

from autotune.core.step import DRIFT, Step, composed_steps, drift, seconds_of_a_token
from tests.makers import step

SEEDS = range(10)


def ran(chance: random.Random, run: int) -> Step:
    """A step of so many micro-steps, each with times of its own, as a stopwatch would note it."""
    times = [(chance.uniform(0.1, 2), chance.uniform(0.1, 3), chance.uniform(0, 0.1)) for _ in range(run)]
    wait, optimizer, rest = chance.uniform(0, 1), chance.uniform(0.01, 1), chance.uniform(0, 0.2)
    whole = [sum(parts) for parts in times]
    between = times[1:-1]
    samples = chance.randint(1, 64) * run
    return Step(
        seconds=wait + sum(whole) + optimizer + rest,
        data_wait_s=wait,
        first_s=whole[0] if run > 1 else 0.0,
        middle_s=sum(whole[1:-1]) / len(between) if between else 0.0,
        last_s=whole[-1] + optimizer,
        optimizer_s=optimizer,
        samples=samples,
        tokens=7 * samples,
        forward_s=sum(forward for forward, _, _ in times),
        backward_s=sum(backward for _, backward, _ in times),
        middle_forward_s=sum(parts[0] for parts in between) / len(between) if between else 0.0,
        middle_backward_s=sum(parts[1] for parts in between) / len(between) if between else 0.0,
        non_padding_tokens=5 * samples,
    )


def parts(whole_step: Step) -> float:
    names = ("data_wait_s", "forward_s", "backward_s", "optimizer_s", "overhead_s")
    return float(sum(getattr(whole_step, name) for name in names))


def test_a_step_of_three_micro_steps_becomes_one_of_many() -> None:
    times = {"data_wait_s": 0.6, "first_s": 2.0, "middle_s": 3.0, "last_s": 4.4, "optimizer_s": 1.0}
    ran = step(10.0, samples=12, tokens=120, non_padding_tokens=90, **times)
    composed_step = ran.composed(3, 8)
    # first + 6 x middle + last, and waiting batch by batch
    assert composed_step.seconds == pytest.approx(0.6 / 3 * 8 + 2.0 + 6 * 3.0 + 4.4)
    assert composed_step.data_wait_s == pytest.approx(1.6)
    assert composed_step.optimizer_s == 1.0
    assert (composed_step.samples, composed_step.tokens, composed_step.non_padding_tokens) == (32, 320, 240)


def test_steps_on_long_and_on_short_texts_are_alike_once_each_is_as_long_as_the_average() -> None:
    def on(tokens: int) -> Step:
        forward, backward = 1e-3 * tokens, 2e-3 * tokens
        times = {"data_wait_s": 0.3, "optimizer_s": 0.5, "forward_s": forward, "backward_s": backward}
        between = {
            "middle_s": 0.1 + (forward + backward) / 3,
            "middle_forward_s": forward / 3,
            "middle_backward_s": backward / 3,
        }
        return step(
            0.8 + 0.3 + forward + backward, samples=6, tokens=tokens, non_padding_tokens=tokens // 2, **times, **between
        )

    long, short = (on(tokens).composed(3, 12, tokens_per_sample=100.0) for tokens in (1200, 300))
    # 24 samples of 100 tokens at 3 ms; waiting for 12 instead of 3 batches; 12 times 0.1 s around micro-steps; the optimizer once
    assert long.seconds == pytest.approx(24 * 100 * 3e-3 + 4 * 0.3 + 12 * 0.1 + 0.5)
    assert short.seconds == pytest.approx(long.seconds)
    assert (long.samples, long.tokens, long.non_padding_tokens) == (24, 2400, 1200)
    again = long.composed(12, 12, tokens_per_sample=100.0)
    assert again.seconds == pytest.approx(long.seconds)
    assert on(300).composed(3, 3) == on(300)


def on_tokens(tokens: int, own_s: float) -> Step:
    """A step of 3 micro-steps of 2 samples, whose passes take this and 1 ms a token."""
    computing = own_s + 1e-3 * tokens
    times = {"forward_s": computing / 3, "backward_s": 2 * computing / 3, "optimizer_s": 0.5, "data_wait_s": 0.0}
    return step(0.5 + computing, samples=6, tokens=tokens, middle_s=0.0, **times)


@pytest.mark.parametrize("own_s", [0.0, 0.6])
def test_time_that_no_token_takes_does_not_grow_with_the_tokens(own_s: float) -> None:
    steps = [on_tokens(tokens, own_s) for tokens in (150, 300, 450, 600, 1500)]
    usual = composed_steps(steps, 3, 6, tokens_per_sample=100.0)
    assert [each.seconds for each in usual] == [pytest.approx(0.5 + 2 * own_s + 1.2)] * 5
    assert [(each.samples, each.tokens) for each in usual] == [(12, 1200)] * 5
    assert seconds_of_a_token(steps) == pytest.approx(1e-3)


def test_too_few_steps_or_steps_of_one_length_tell_no_time_of_a_token() -> None:
    assert seconds_of_a_token([on_tokens(tokens, 0.6) for tokens in (150, 300, 450, 600)]) is None
    assert seconds_of_a_token([on_tokens(150, 0.6)] * 9) is None
    assert composed_steps([], 3, 6, tokens_per_sample=100.0) == [], "of a probe that failed before its first timed step"


def test_noise_makes_no_token_take_less_than_nothing_or_more_than_its_share() -> None:
    less, more = (
        [step(1.0, tokens=tokens, forward_s=seconds) for tokens, seconds in enumerate(times, 1)]
        for times in ((5.0, 4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0, 9.0))
    )
    assert seconds_of_a_token(less) == 0.0
    assert seconds_of_a_token(more) == pytest.approx(19 / 15)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_parts_of_a_step_always_add_up_to_its_seconds(seed: int) -> None:
    chance = random.Random(seed)
    run = chance.randint(1, 5)
    whole_step = ran(chance, run)
    assert parts(whole_step) == pytest.approx(whole_step.seconds)
    assert step(1.0, forward_s=0.7, backward_s=0.6).overhead_s == 0.0, "parts that overlap"
    if run >= 3:
        composed_step = whole_step.composed(run, run + chance.randint(0, 60))
        assert parts(composed_step) == pytest.approx(composed_step.seconds)
        assert composed_step.overhead_s >= whole_step.overhead_s


# Drift ----------------------------------------------------------------------------------------------------------


def test_steps_that_grow_slower_or_faster_have_drifted() -> None:
    before, after = [step(1.0 + 0.001 * n) for n in range(8)], [step(1.3 + 0.001 * n) for n in range(8)]
    assert drift([*before, *after]) == pytest.approx(1 / 1.3 - 1, rel=0.01)
    assert drift([*after, *before]) == pytest.approx(0.3, rel=0.01)


def test_a_small_change_one_within_chance_or_few_steps_are_no_drift() -> None:
    steady = [step(1.0 + 0.001 * n) for n in range(8)]
    small = [step((1.0 + DRIFT / 2) * (1.0 + 0.001 * n)) for n in range(8)]
    assert drift([*steady, *small]) == 0.0
    restless = [step(0.5 + n % 2) for n in range(7)]
    assert drift([*restless, *[step(1.2 * whole_step.seconds) for whole_step in restless]]) == 0.0
    assert drift([step(1.0)] * 3 + [step(2.0)] * 4) == 0.0
    assert drift([]) == 0.0


def test_steps_that_are_slower_for_being_longer_have_not_drifted() -> None:
    short, long = ([step(seconds, tokens=int(100 * seconds))] * 8 for seconds in (1.0, 2.0))
    assert drift([*short, *long]) == 0.0
