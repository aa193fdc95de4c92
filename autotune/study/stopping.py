"""Reasons for which a search stops."""

import math

from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.trial import Trial
from autotune.core.units import format_seconds
from autotune.sampler.policy import CONFIDENCE, Choice, End, run_seconds
from autotune.study.objective import leader
from autotune.study.plan import Plan


def stop_reason(plan: Plan, trials: list[Trial], choice: Choice, space_size: int) -> StopReason:
    """The reason for which nothing more is measured. space_size: configurations of the whole space."""
    match choice.end:
        case End.TIME:
            return time_is_over(plan)
        case End.PROBES:
            further = plan.probes(trials) - plan.n_trials
            more = f", and {further} more for trials that ran out of memory in a round" if further > 0 else ""
            return StopReason(StopKind.BUDGET, f"the budget of {plan.n_trials} trials is used{more}")
        case End.ALL:
            around = "around the best of the core settings " if len(trials) < space_size else ""
            text = choice.reason or f"all configurations {around}have been measured or ruled out"
            return StopReason(StopKind.ALL_TESTED, text, None if choice.reason else 0.0)
        case End.WORTH if (reason := _not_worth_it(plan, trials, choice)) is not None:
            return reason
    return _nothing_to_win(plan, choice)


def time_is_over(plan: Plan) -> StopReason:
    """The reason of a search that its time limit ended: it is reached, or leaves too little for another trial."""
    limit, left = format_seconds(plan.time.seconds or 0.0), plan.time.seconds_left()
    if not (plan.time.is_set and left >= 1):
        return StopReason(StopKind.TIME, f"the time limit of {limit} is reached")
    trial = "another trial and its proof" if plan.confirmation_rounds else "another trial"
    text = f"{format_seconds(left)} of the time limit of {limit} were left, too few for {trial}"
    return StopReason(StopKind.TIME, text)


def _nothing_to_win(plan: Plan, choice: Choice) -> StopReason:
    """By what further probes could win."""
    margin, confidence, of_any = _share(plan.margin), _confidence(choice), choice.max_gain_if_fits
    if of_any <= plan.margin:
        text = f"no untested configuration can beat the best by more than {margin}{confidence}"
        return StopReason(StopKind.NOTHING_TO_WIN, text, plan.margin)
    text = f"no untested configuration is likely to fit{confidence}"
    if choice.max_gain > 0:
        text = f"no untested configuration that is likely to fit can beat the best by more than {margin}{confidence}"
    if math.isinf(of_any):
        return StopReason(StopKind.NOTHING_TO_WIN, text)
    text = f"{text}; if others fit too, they can beat the best by at most {_share(of_any)}"
    return StopReason(StopKind.NOTHING_TO_WIN, text, of_any)


def _not_worth_it(plan: Plan, trials: list[Trial], choice: Choice) -> StopReason | None:
    """The training is too short for another probe to pay; it is an hour without announced steps."""
    best = leader(trials, plan.objective)
    if best is None or best.final.step_time_s is None:
        return None
    training = format_seconds(run_seconds(plan.training_steps, best.final.step_time_s))
    probe = format_seconds(choice.seconds)
    if plan.training_steps is None:
        text = (
            f"another probe of about {probe} is not expected to save as much in {training} of training "
            "(--training-steps says how long yours is)"
        )
        return StopReason(StopKind.NOT_WORTH_IT, text)
    text = (
        f"your {plan.training_steps} steps take about {training}: "
        f"another probe of about {probe} is not expected to save as much"
    )
    if len(trials) == 1:
        fastest = f"{choice.promising} (not measured)" if choice.promising else "what you have"
        text = f"{text}; estimated fastest: {fastest}"
    return StopReason(StopKind.NOT_WORTH_IT, text)


def _confidence(choice: Choice) -> str:
    return f" ({CONFIDENCE:.0%} confidence, {choice.untried} untested configuration{'s' * (choice.untried != 1)})"


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
