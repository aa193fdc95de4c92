"""Reasons for which a search stops."""

import math

from autotune.core.stop_reason import StopKind, StopReason
from autotune.judge.standing import Standing
from autotune.sampler.constants import CONFIDENCE, PATIENCE
from autotune.sampler.gains import run_seconds
from autotune.sampler.policy import Choice, End
from autotune.space.search_space import SearchSpace
from autotune.study.plan import Plan


def stop_reason(plan: Plan, standing: Standing, choice: Choice, space: SearchSpace) -> StopReason:
    """The reason for which nothing more is measured."""
    trials = standing.trials
    match choice.end:
        case End.TIME:
            return time_is_over(plan)
        case End.PROBES:
            further = max(0, plan.probes(trials) - plan.n_trials)
            return StopReason(StopKind.BUDGET, {"n_trials": plan.n_trials, "further_trials": further})
        case End.ALL:
            # Other settings are tried around the best of the core settings alone, once anything fits.
            is_part = space.core and len(trials) < space.size and any(trial.feasible for trial in trials)
            return choice.stop or StopReason(StopKind.CORE_TESTED if is_part else StopKind.ALL_TESTED)
        case End.WORTH if (reason := _not_worth_it(plan, standing, choice)) is not None:
            return reason
    numbers, of_any = (
        {"margin": plan.margin, "confidence": CONFIDENCE, "untested": choice.untried},
        choice.max_gain_if_fits,
    )
    if choice.end is End.DRY:
        return StopReason(StopKind.NOTHING_BETTER, numbers | {"trials": PATIENCE, "max_gain_if_fits": of_any})
    if of_any <= plan.margin:
        return StopReason(StopKind.NOTHING_TO_WIN, numbers)
    kind = StopKind.NOTHING_LIKELY_TO_WIN if choice.max_gain > 0 else StopKind.NOTHING_LIKELY_TO_FIT
    return StopReason(kind, numbers | ({"max_gain_if_fits": of_any} if math.isfinite(of_any) else {}))


def time_is_over(plan: Plan) -> StopReason:
    """The reason of a search that its time limit ended: it is reached, or leaves too little for another trial."""
    limit, left = {"limit_s": plan.time.seconds or 0.0}, plan.time.seconds_left()
    if not (plan.time.is_set and left >= 1):
        return StopReason(StopKind.TIME, limit)
    trial = "another trial and its proof" if plan.confirmation_rounds else "another trial"
    return StopReason(StopKind.LITTLE_TIME, limit | {"left_s": left}, trial)


def _not_worth_it(plan: Plan, standing: Standing, choice: Choice) -> StopReason | None:
    """The training is too short for another probe to pay; it is two hours without announced steps."""
    best = standing.leader
    if best is None or best.final.step_time_s is None:
        return None
    numbers = {"training_s": run_seconds(plan.training_steps, best.final.step_time_s), "probe_s": choice.seconds}
    if plan.training_steps is None:
        return StopReason(StopKind.NOT_WORTH_ASSUMED, numbers)
    promising = f"{choice.promising} (not measured)" if choice.promising else "what you have"
    numbers["training_steps"] = plan.training_steps
    return StopReason(StopKind.NOT_WORTH_IT, numbers, fastest=promising if len(standing.trials) == 1 else "")
