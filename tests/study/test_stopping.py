"""Why a search ends: its budget, nothing left to win, or a run too short to be worth more of it."""

import math
from dataclasses import replace

import pytest

from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.time_limit import TimeLimit
from autotune.sampler.policy import Choice, End
from autotune.space.search_space import SearchSpace
from autotune.study.plan import Plan
from autotune.study.stopping import stop_reason
from tests.clocks import SimulatedTime
from tests.makers import ALLOWED, configuration, out_of_memory, space, trial

PLAN = Plan(10, "samples_per_second", ALLOWED, time=TimeLimit(6000.0))
TRIALS = [trial(number, 48.0, of=configuration(8, workers=number)) for number in range(4)]
NEXT = configuration(16)
SPACE = space(workers=(0, 1, 2, 3), micro_batch_size=(8,))
"""As many configurations as were tried."""


def ended(end: End, max_gain: float = 0.2, max_gain_if_fits: float | None = None, untried: int = 30) -> Choice:
    """The choice of nothing. seconds: of a probe that is left out."""
    of_any = max_gain if max_gain_if_fits is None else max_gain_if_fits
    return Choice(
        None, end=end, max_gain=max_gain, max_gain_if_fits=of_any, untried=untried, seconds=5.0, promising=NEXT
    )


def announced(steps: int) -> Plan:
    return Plan(10, "samples_per_second", ALLOWED, training_steps=steps)


@pytest.mark.parametrize(
    ("plan", "choice", "kind", "bound"),
    [
        (PLAN, ended(End.PROBES), StopKind.BUDGET, None),
        (replace(PLAN, time=TimeLimit(1.0)), ended(End.TIME), StopKind.TIME, None),
        (PLAN, ended(End.TIME), StopKind.LITTLE_TIME, None),
        (PLAN, ended(End.ALL), StopKind.ALL_TESTED, 0.0),
        (
            PLAN,
            replace(ended(End.ALL), stop=StopReason(StopKind.ALL_PROPOSED, {"proposals": 200})),
            StopKind.ALL_PROPOSED,
            None,
        ),
        (PLAN, ended(End.GAIN, 0.009), StopKind.NOTHING_TO_WIN, PLAN.margin),
        (PLAN, ended(End.GAIN, 0.0, 0.2), StopKind.NOTHING_LIKELY_TO_FIT, 0.2),
        (PLAN, ended(End.GAIN, math.inf), StopKind.NOTHING_LIKELY_TO_WIN, None),
        (announced(20), ended(End.WORTH), StopKind.NOT_WORTH_IT, None),
    ],
)
def test_a_reason_carries_its_kind_and_what_it_says_is_left_to_win(
    plan: Plan, choice: Choice, kind: StopKind, bound: float | None
) -> None:
    reason = stop_reason(plan, TRIALS, choice, SPACE)
    assert (reason.kind, reason.bound) == (kind, bound)


def text(plan: Plan, choice: Choice, trials: int = 4, among: SearchSpace = SPACE) -> str:
    return stop_reason(plan, TRIALS[:trials], choice, among).text


def test_a_budget_ends_it() -> None:
    assert text(PLAN, ended(End.PROBES)) == "the budget of 10 trials is used"
    time = SimulatedTime(60.0)
    time.spend(60.0)
    assert text(replace(PLAN, time=time), ended(End.TIME)) == "the time limit of 1 min 0 s is reached"


def test_time_that_is_left_is_said_with_what_it_is_too_short_for() -> None:
    time = SimulatedTime(90.0)
    time.spend(56.0)
    reason = "34 s of the time limit of 1 min 30 s were left, too few for another trial and its proof"
    assert text(replace(PLAN, time=time), ended(End.TIME)) == reason
    without = replace(PLAN, time=time, confirmation_rounds=0)
    assert text(without, ended(End.TIME)) == "34 s of the time limit of 1 min 30 s were left, too few for another trial"


def test_it_ends_once_nothing_untried_can_win_more_than_the_margin() -> None:
    assert text(PLAN, ended(End.GAIN, 0.009)) == (
        "no untested configuration can beat the best by more than 1.0% (95% confidence, 30 untested configurations)"
    )


def test_what_probably_does_not_fit_is_spoken_of_apart() -> None:
    assert text(PLAN, ended(End.GAIN, 0.009, 0.07)) == (
        "no untested configuration that is likely to fit can beat the best by more than 1.0% "
        "(95% confidence, 30 untested configurations); if others fit too, they can beat the best by at most 7.0%"
    )
    starved = text(PLAN, ended(End.GAIN, 0.0, math.inf, 7))
    assert starved == "no untested configuration is likely to fit (95% confidence, 7 untested configurations)"
    hardly = text(PLAN, ended(End.GAIN, 0.0, 0.2, 7))
    assert hardly == f"{starved}; if others fit too, they can beat the best by at most 20%"


def test_it_ends_when_all_is_known() -> None:
    everything = "all configurations have been measured or ruled out"
    assert text(PLAN, ended(End.ALL)) == everything
    assert text(PLAN, ended(End.ALL), trials=3) == everything, "a trial ruled the last one out"
    core = replace(SPACE, core=("workers",))
    part = text(PLAN, ended(End.ALL), trials=3, among=core)
    assert part == "all configurations around the best of the core settings have been measured or ruled out"
    starved = [replace(each, measurement=out_of_memory(each.configuration)) for each in TRIALS[:3]]
    assert stop_reason(PLAN, starved, ended(End.ALL), core).text == everything


def test_a_short_run_is_not_worth_another_probe() -> None:
    """A step takes a second."""
    said = text(announced(20), ended(End.WORTH))
    assert said == ("your 20 steps take about 20 s: another probe of about 5 s is not expected to save as much")


def test_before_any_other_probe_the_estimates_pick_is_told() -> None:
    said = text(announced(20), ended(End.WORTH), trials=1)
    assert said.endswith(f"estimated fastest: {NEXT} (not measured)")
    mine = text(announced(20), replace(ended(End.WORTH), promising=None), trials=1)
    assert mine.endswith("estimated fastest: what you have")


def test_without_announced_steps_the_reason_speaks_of_an_hour_of_training() -> None:
    assert "not expected to save as much in 1 h 0 min of training" in text(PLAN, ended(End.WORTH))
