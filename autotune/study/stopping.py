"""Reasons for which a search stops."""

import math

from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.trial import Trial
from autotune.core.units import format_seconds
from autotune.sampler.acquisition import CONFIDENCE, FIRST_PROBES, Proposal, run_seconds
from autotune.study.objective import leader
from autotune.study.plan import Plan


def out_of_budget(plan: Plan, trials: list[Trial], out_of_time: bool) -> StopReason | None:
    """The reason to stop by what was spent; None to go on. out_of_time: whether there is no time for another probe."""
    if len(trials) >= (probes := plan.probes(trials)):
        further = f", and {probes - plan.n_trials} more for trials that ran out of memory in a round"
        text = f"the budget of {plan.n_trials} trials is used{further if probes > plan.n_trials else ''}"
        return StopReason(StopKind.BUDGET, text)
    return time_is_over(plan) if out_of_time else None


def time_is_over(plan: Plan) -> StopReason:
    """The reason of a search that its time limit ended: it is reached, or leaves too little for another trial."""
    limit, left = format_seconds(plan.time.seconds or 0.0), plan.time.seconds_left()
    if not (plan.time.is_set and left >= 1):
        return StopReason(StopKind.TIME, f"the time limit of {limit} is reached")
    text = (
        f"{format_seconds(left)} of the time limit of {limit} were left, too few for another trial and its confirmation"
    )
    return StopReason(StopKind.TIME, text)


def nothing_to_win(plan: Plan, trials: list[Trial], choice: Proposal, space_size: int) -> StopReason | None:
    """The reason to stop by what further probes could win; None to go on. space_size: configurations of the whole space."""
    if choice.configuration is None and not choice.untried:
        around = "around the best of the core settings " if len(trials) < space_size else ""
        return StopReason(StopKind.ALL_TESTED, f"all configurations {around}have been measured or ruled out", 0.0)
    if choice.configuration is not None and (len(trials) < FIRST_PROBES or choice.can_win(plan.margin)):
        return _not_worth_it(plan, trials, choice) if trials else None
    margin, confidence, of_any = _share(plan.margin), _confidence(choice), choice.max_gain_if_fits
    if of_any <= plan.margin:
        text = f"no untested configuration can beat the best by more than {margin}{confidence}"
        return StopReason(StopKind.NOTHING_TO_WIN, text, plan.margin)
    text = f"no untested configuration is likely to fit{confidence}"
    if choice.configuration is not None:
        text = f"no untested configuration that is likely to fit can beat the best by more than {margin}{confidence}"
    if math.isinf(of_any):
        return StopReason(StopKind.NOTHING_TO_WIN, text)
    text = f"{text}; if others fit too, they can beat the best by at most {_share(of_any)}"
    return StopReason(StopKind.NOTHING_TO_WIN, text, of_any)


def _not_worth_it(plan: Plan, trials: list[Trial], choice: Proposal) -> StopReason | None:
    """The reason to stop if the training is too short for another probe to pay; it is an hour without announced steps."""
    best = leader(trials, plan.objective)
    of_speed = plan.objective != "memory"
    if not of_speed or best is None or best.final.step_time_s is None:
        return None
    training_s = run_seconds(plan.training_steps, best.final.step_time_s)
    if choice.expected_gain * training_s >= choice.probe_seconds:
        return None
    probe, training = format_seconds(choice.probe_seconds), format_seconds(training_s)
    if plan.training_steps is None:
        if len(trials) < FIRST_PROBES or plan.margin <= 0:  # all that can be won is wanted
            return None
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
        fastest = f"{choice.configuration} (not measured)" if choice.better else "what you have"
        text = f"{text}; estimated fastest: {fastest}"
    return StopReason(StopKind.NOT_WORTH_IT, text)


def _confidence(choice: Proposal) -> str:
    return f" ({CONFIDENCE:.0%} confidence, {choice.untried} untested configuration{'s' * (choice.untried != 1)})"


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
