"""Why a search ends, and what is said of that."""

import math

from autotune.core.trial import Trial
from autotune.core.units import format_seconds
from autotune.sampler.acquisition import CONFIDENCE, FIRST_PROBES, Proposal, run_seconds
from autotune.study.objective import best_trial
from autotune.study.plan import Plan


def out_of_budget(plan: Plan, trials: list[Trial], out_of_time: bool) -> str:
    """Why to stop by what was spent, or nothing. out_of_time: whether there is no time for another probe."""
    if len(trials) >= plan.n_trials:
        return f"the budget of {plan.n_trials} trials is used"
    return time_is_over(plan) if out_of_time else ""


def time_is_over(plan: Plan) -> str:
    """What is said of a search that its time ended."""
    return f"the time of {format_seconds(plan.time.seconds or 0.0)} is over"


def nothing_to_win(plan: Plan, trials: list[Trial], choice: Proposal, space_size: int) -> str:
    """Why to stop by what further probes could win, or nothing. space_size: configurations of the whole space."""
    if choice.configuration is None and not choice.untried:
        if len(trials) < space_size:
            return "all configurations around the best of the core settings have been measured or ruled out"
        return "all configurations have been measured or ruled out"
    if choice.configuration is not None and (len(trials) < FIRST_PROBES or choice.can_win(plan.margin)):
        return _not_worth_it(plan, trials, choice) if trials else ""
    if choice.max_gain_if_fits <= plan.margin:
        return f"nothing untried can beat the best by more than {_share(plan.margin)}{_surely(choice)}"
    reason = f"nothing untried is likely to fit{_surely(choice)}"
    if choice.configuration is not None:
        best = f"nothing untried that is likely to fit can beat the best by more than {_share(plan.margin)}"
        reason = f"{best}{_surely(choice)}"
    if math.isinf(choice.max_gain_if_fits):
        return reason
    return f"{reason}; what fits after all could beat the best by at most {_share(choice.max_gain_if_fits)}"


def could_still_win(choice: Proposal) -> str:
    """What a search leaves open that ends before nothing can be won."""
    if choice.configuration is None or math.isinf(choice.max_gain_if_fits):
        return ""
    return f"what is untried could beat the best by at most {_share(choice.max_gain_if_fits)}{_surely(choice)}"


def _not_worth_it(plan: Plan, trials: list[Trial], choice: Proposal) -> str:
    """Whether the run to tune for is too short for another probe to pay; without announced steps it is an hour of training."""
    best = best_trial(trials, plan.objective)
    of_speed = plan.objective != "memory"
    if not of_speed or best is None or best.final.step_time_s is None:
        return ""
    training_s = run_seconds(plan.training_steps, best.final.step_time_s)
    if choice.expected_gain * training_s >= choice.probe_seconds:
        return ""
    if plan.training_steps is None:
        if len(trials) < FIRST_PROBES or plan.margin <= 0:  # all that can be won is wanted
            return ""
        reason = (
            f"another probe of about {format_seconds(choice.probe_seconds)} is not expected to save as much in "
            f"{format_seconds(training_s)} of training (--training-steps says how long yours is)"
        )
        return "; ".join(filter(None, (reason, could_still_win(choice))))
    reason = (
        f"your {plan.training_steps} steps take about {format_seconds(training_s)}: another probe of about "
        f"{format_seconds(choice.probe_seconds)} is not expected to save as much"
    )
    if len(trials) > 1:
        return reason
    fastest = f"{choice.configuration} (not measured)" if choice.better else "what you have"
    return f"{reason}; estimated fastest: {fastest}"


def _surely(choice: Proposal) -> str:
    return f" ({CONFIDENCE:.0%} sure, {choice.untried} untried configuration{'s' * (choice.untried != 1)} considered)"


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
