"""Why a search ends: its budget, nothing left to win, or a run too short to be worth more of it."""

import math
from dataclasses import replace

import pytest

from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.time_limit import TimeLimit
from autotune.sampler.policy import Choice, End
from autotune.study.plan import Plan
from autotune.study.stopping import stop_reason
from tests.clocks import SimulatedTime
from tests.makers import ALLOWED, configuration, out_of_memory, space, standing_of, trial

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


UNTESTED = "(95% confidence, 30 untested configurations)"
LIKELY = "no untested configuration that is likely to fit can beat the best by more than 1.0% "
FURTHER = "; if others fit too, they can beat the best by at most"
ALL = "all configurations have been measured or ruled out"
PROPOSED = StopReason(StopKind.ALL_PROPOSED, {"proposals": 200})


def limited(seconds: float, passed: float, **facts: int) -> Plan:
    time = SimulatedTime(seconds)
    time.spend(passed)
    return replace(PLAN, time=time, **facts)


@pytest.mark.parametrize(
    ("plan", "choice", "kind", "bound", "text"),
    [
        (PLAN, ended(End.PROBES), StopKind.BUDGET, None, "the budget of 10 trials is used"),
        (limited(60, 60), ended(End.TIME), StopKind.TIME, None, "the time limit of 1 min 0 s is reached"),
        (
            limited(90, 56),
            ended(End.TIME),
            StopKind.LITTLE_TIME,
            None,
            "34 s of the time limit of 1 min 30 s were left, too few for another trial and its proof",
        ),
        (
            limited(90, 56, confirmation_rounds=0),
            ended(End.TIME),
            StopKind.LITTLE_TIME,
            None,
            "34 s of the time limit of 1 min 30 s were left, too few for another trial",
        ),
        (PLAN, ended(End.ALL), StopKind.ALL_TESTED, 0.0, ALL),
        (PLAN, replace(ended(End.ALL), stop=PROPOSED), StopKind.ALL_PROPOSED, None, PROPOSED.text),
        (
            PLAN,
            ended(End.GAIN, 0.009),
            StopKind.NOTHING_TO_WIN,
            PLAN.margin,
            f"no untested configuration can beat the best by more than 1.0% {UNTESTED}",
        ),
        (
            PLAN,
            ended(End.GAIN, 0.009, 0.07),
            StopKind.NOTHING_LIKELY_TO_WIN,
            0.07,
            f"{LIKELY}{UNTESTED}{FURTHER} 7.0%",
        ),
        (
            PLAN,
            ended(End.GAIN, 0.0, 0.2),
            StopKind.NOTHING_LIKELY_TO_FIT,
            0.2,
            f"no untested configuration is likely to fit {UNTESTED}{FURTHER} 20%",
        ),
        (PLAN, ended(End.GAIN, math.inf), StopKind.NOTHING_LIKELY_TO_WIN, None, f"{LIKELY}{UNTESTED}"),
        (
            announced(20),
            ended(End.WORTH),
            StopKind.NOT_WORTH_IT,
            None,
            "your 20 steps take about 20 s: another probe of about 5 s is not expected to save as much",
        ),
    ],
)
def test_a_reason_carries_its_kind_what_it_says_is_left_to_win_and_its_text(
    plan: Plan, choice: Choice, kind: StopKind, bound: float | None, text: str
) -> None:
    reason = stop_reason(plan, standing_of(TRIALS), choice, SPACE)
    assert (reason.kind, reason.bound, reason.text) == (kind, bound, text)


def test_settings_around_the_core_alone_are_not_all_there_is() -> None:
    assert stop_reason(PLAN, standing_of(TRIALS[:3]), ended(End.ALL), SPACE).text == ALL, (
        "a trial ruled the last one out"
    )
    core = replace(SPACE, core=("workers",))
    part = stop_reason(PLAN, standing_of(TRIALS[:3]), ended(End.ALL), core).text
    assert part == "all configurations around the best of the core settings have been measured or ruled out"
    starved = [replace(each, measurement=out_of_memory(each.configuration)) for each in TRIALS[:3]]
    assert stop_reason(PLAN, standing_of(starved), ended(End.ALL), core).text == ALL


def test_before_any_other_probe_the_estimates_pick_is_told() -> None:
    for promising, told in ((NEXT, f"{NEXT} (not measured)"), (None, "what you have")):
        choice = replace(ended(End.WORTH), promising=promising)
        assert stop_reason(announced(20), standing_of(TRIALS[:1]), choice, SPACE).text.endswith(
            f"estimated fastest: {told}"
        )
    assert (
        "save as much in 2 h 0 min of training" in stop_reason(PLAN, standing_of(TRIALS), ended(End.WORTH), SPACE).text
    )
