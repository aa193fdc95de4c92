"""Why a search ends: its budget, nothing left to win, or a run too short to be worth more of it."""

import math
from dataclasses import replace
from typing import Any

from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.time_limit import TimeLimit
from autotune.sampler.acquisition import Proposal
from autotune.study import stopping
from autotune.study.plan import Plan
from tests.clocks import SimulatedTime
from tests.makers import ALLOWED, configuration, trial

PLAN = Plan(10, "samples_per_second", ALLOWED, ALLOWED, time=TimeLimit(60.0))
TRIALS = [trial(number, 48.0, of=configuration(8, workers=number)) for number in range(4)]
NEXT = configuration(16)
SIZE = 4
"""Configurations of the space: as many as were tried."""


def text(reason: StopReason | None) -> str:
    return reason.text if reason else ""


def out_of_budget(*given: Any, **more: Any) -> str:
    return text(stopping.out_of_budget(*given, **more))


def nothing_to_win(*given: Any) -> str:
    return text(stopping.nothing_to_win(*given))


def test_a_reason_carries_its_kind_and_what_it_says_is_left_to_win() -> None:
    def ends(of: Proposal, plan: Plan = PLAN) -> tuple[StopKind, float | None]:
        reason = stopping.nothing_to_win(plan, TRIALS, of, SIZE)
        assert reason is not None
        return reason.kind, reason.bound

    assert ends(choice(max_gain=0.009, expected_gain=1e-4)) == (StopKind.NOTHING_TO_WIN, PLAN.margin)
    assert ends(Proposal(None, 0.0, 0.2, 7)) == (StopKind.NOTHING_TO_WIN, 0.2)
    assert ends(Proposal(None, math.inf, math.inf, 7)) == (StopKind.NOTHING_TO_WIN, None)
    assert ends(Proposal(None, 0.0, 0.0, 0)) == (StopKind.ALL_TESTED, 0.0)
    assert ends(choice(), announced(20)) == (StopKind.NOT_WORTH_IT, None)


def choice(max_gain: float = 0.2, expected_gain: float = 0.1, probe_seconds: float = 5.0) -> Proposal:
    return Proposal(NEXT, max_gain, max_gain, 30, expected_gain, probe_seconds, better=True)


def announced(steps: int) -> Plan:
    return Plan(10, "samples_per_second", ALLOWED, ALLOWED, training_steps=steps)


def test_a_budget_ends_it() -> None:
    assert out_of_budget(PLAN, TRIALS, out_of_time=False) == ""
    assert out_of_budget(PLAN, TRIALS * 3, out_of_time=True) == "the budget of 10 trials is used"
    time = SimulatedTime(60.0)
    time.spend(60.0)
    assert out_of_budget(replace(PLAN, time=time), TRIALS, out_of_time=True) == "the time limit of 1 min 0 s is reached"


def test_time_that_is_left_is_said_with_what_it_is_too_short_for() -> None:
    time = SimulatedTime(90.0)
    time.spend(56.0)
    reason = "34 s of the time limit of 1 min 30 s were left, too few for another trial and its confirmation"
    assert out_of_budget(replace(PLAN, time=time), TRIALS, out_of_time=True) == reason


def test_it_ends_once_nothing_untried_can_win_more_than_the_margin() -> None:
    assert nothing_to_win(PLAN, TRIALS, choice(max_gain=0.011), SIZE) == ""
    assert nothing_to_win(PLAN, TRIALS, choice(max_gain=0.009, expected_gain=0.002), SIZE) == "", "worth its time"
    said = nothing_to_win(PLAN, TRIALS, choice(max_gain=0.009, expected_gain=1e-4), SIZE)
    assert said == (
        "no untested configuration can beat the best by more than 1.0% (95% confidence, 30 untested configurations)"
    )


def test_what_probably_does_not_fit_is_spoken_of_apart() -> None:
    said = nothing_to_win(
        PLAN, TRIALS, replace(choice(max_gain=0.009, expected_gain=1e-4), max_gain_if_fits=0.07), SIZE
    )
    assert said == (
        "no untested configuration that is likely to fit can beat the best by more than 1.0% "
        "(95% confidence, 30 untested configurations); if others fit too, they can beat the best by at most 7.0%"
    )


def test_nothing_is_concluded_from_two_probes() -> None:
    assert nothing_to_win(PLAN, TRIALS[:2], choice(max_gain=0.0), SIZE) == ""


def test_it_ends_when_all_is_known() -> None:
    known = nothing_to_win(PLAN, TRIALS, Proposal(None, 0.0, 0.0, 0), SIZE)
    assert known == "all configurations have been measured or ruled out"
    part = nothing_to_win(PLAN, TRIALS, Proposal(None, 0.0, 0.0, 0), SIZE + 1)
    assert part == "all configurations around the best of the core settings have been measured or ruled out"
    starved = nothing_to_win(PLAN, TRIALS, Proposal(None, math.inf, math.inf, 7), SIZE)
    assert starved == "no untested configuration is likely to fit (95% confidence, 7 untested configurations)"
    hardly = nothing_to_win(PLAN, TRIALS, Proposal(None, 0.0, 0.2, 7), SIZE)
    assert hardly == f"{starved}; if others fit too, they can beat the best by at most 20%"


def test_a_short_run_is_not_worth_another_probe() -> None:
    """A step takes a second: of 20 steps a tenth is 2 s, of 100 it is 10 s; a probe takes 5 s."""
    assert nothing_to_win(announced(100), TRIALS, choice(), SIZE) == ""
    said = nothing_to_win(announced(20), TRIALS, choice(), SIZE)
    assert said.startswith("your 20 steps take about 20 s: another probe of about 5 s is not expected to save as much")


def test_before_any_other_probe_the_estimates_pick_is_told() -> None:
    said = nothing_to_win(announced(20), TRIALS[:1], choice(), SIZE)
    assert said.endswith(f"estimated fastest: {NEXT} (not measured)")


def test_where_nothing_is_expected_to_be_faster_what_one_has_is_the_pick() -> None:
    said = nothing_to_win(announced(20), TRIALS[:1], replace(choice(), better=False), SIZE)
    assert said.endswith("estimated fastest: what you have")


def test_without_announced_steps_a_probe_has_to_pay_within_an_hour_of_training() -> None:
    """A probe takes 5 s: 0.14 % of an hour."""
    assert nothing_to_win(PLAN, TRIALS, choice(expected_gain=0.002), SIZE) == ""
    reason = nothing_to_win(PLAN, TRIALS, choice(expected_gain=0.001), SIZE)
    assert "not expected to save as much in 1 h 0 min of training" in reason
    everything = replace(PLAN, margin=0.0)
    assert nothing_to_win(everything, TRIALS, choice(expected_gain=0.001), SIZE) == ""


def test_a_risky_try_is_worth_its_probe() -> None:
    risky = replace(choice(max_gain=0.0), fits=0.6, risky=True)
    assert nothing_to_win(PLAN, TRIALS, risky, SIZE) == ""


def test_a_share_of_memory_is_not_weighed_against_seconds() -> None:
    of_memory = replace(announced(20), objective="memory")
    assert nothing_to_win(of_memory, TRIALS, choice(), SIZE) == ""
