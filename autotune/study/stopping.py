"""Reasons for which a search stops, as texts."""

import math

from autotune.core.trial import Trial
from autotune.core.units import format_seconds
from autotune.sampler.acquisition import CONFIDENCE, FIRST_PROBES, Proposal, run_seconds
from autotune.study.objective import leader
from autotune.study.plan import Plan


def out_of_budget(plan: Plan, trials: list[Trial], out_of_time: bool) -> str:
    """Why to stop by what was spent, or nothing. out_of_time: whether there is no time for another probe."""
    if len(trials) >= (probes := plan.probes(trials)):
        further = f", and {probes - plan.n_trials} more for trials that ran out of memory in a round"
        return f"the budget of {plan.n_trials} trials is used{further if probes > plan.n_trials else ''}"
    return time_is_over(plan) if out_of_time else ""


def time_is_over(plan: Plan) -> str:
    """The reason of a search that its time limit ended: it is reached, or leaves too little for another trial."""
    limit, left = format_seconds(plan.time.seconds or 0.0), plan.time.seconds_left()
    if not (plan.time.is_set and left >= 1):
        return f"the time limit of {limit} is reached"
    return (
        f"{format_seconds(left)} of the time limit of {limit} were left, too few for another trial and its confirmation"
    )


def nothing_to_win(plan: Plan, trials: list[Trial], choice: Proposal, space_size: int) -> str:
    """Why to stop by what further probes could win, or nothing. space_size: configurations of the whole space."""
    if choice.configuration is None and not choice.untried:
        if len(trials) < space_size:
            return "all configurations around the best of the core settings have been measured or ruled out"
        return "all configurations have been measured or ruled out"
    if choice.configuration is not None and (len(trials) < FIRST_PROBES or choice.can_win(plan.margin)):
        return _not_worth_it(plan, trials, choice) if trials else ""
    if choice.max_gain_if_fits <= plan.margin:
        return f"no untested configuration can beat the best by more than {_share(plan.margin)}{_confidence(choice)}"
    reason = f"no untested configuration is likely to fit{_confidence(choice)}"
    if choice.configuration is not None:
        best = f"no untested configuration that is likely to fit can beat the best by more than {_share(plan.margin)}"
        reason = f"{best}{_confidence(choice)}"
    if math.isinf(choice.max_gain_if_fits):
        return reason
    return f"{reason}; if others fit too, they can beat the best by at most {_share(choice.max_gain_if_fits)}"


def _not_worth_it(plan: Plan, trials: list[Trial], choice: Proposal) -> str:
    """Why the planned training is too short for another probe to pay, or nothing; without announced steps it is an hour."""
    best = leader(trials, plan.objective)
    of_speed = plan.objective != "memory"
    if not of_speed or best is None or best.final.step_time_s is None:
        return ""
    training_s = run_seconds(plan.training_steps, best.final.step_time_s)
    if choice.expected_gain * training_s >= choice.probe_seconds:
        return ""
    if plan.training_steps is None:
        if len(trials) < FIRST_PROBES or plan.margin <= 0:  # all that can be won is wanted
            return ""
        return (
            f"another probe of about {format_seconds(choice.probe_seconds)} is not expected to save as much in "
            f"{format_seconds(training_s)} of training (--training-steps says how long yours is)"
        )
    reason = (
        f"your {plan.training_steps} steps take about {format_seconds(training_s)}: another probe of about "
        f"{format_seconds(choice.probe_seconds)} is not expected to save as much"
    )
    if len(trials) > 1:
        return reason
    fastest = f"{choice.configuration} (not measured)" if choice.better else "what you have"
    return f"{reason}; estimated fastest: {fastest}"


def _confidence(choice: Proposal) -> str:
    return f" ({CONFIDENCE:.0%} confidence, {choice.untried} untested configuration{'s' * (choice.untried != 1)})"


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
