"""Reasons for which a search stops."""

import math

from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.trial import Trial
from autotune.sampler.policy import CONFIDENCE, Choice, End, run_seconds
from autotune.study.objective import leader
from autotune.study.plan import Plan


def stop_reason(plan: Plan, trials: list[Trial], choice: Choice, space_size: int) -> StopReason:
    """The reason for which nothing more is measured. space_size: configurations of the whole space."""
    match choice.end:
        case End.TIME:
            return time_is_over(plan)
        case End.PROBES:
            further = max(0, plan.probes(trials) - plan.n_trials)
            return StopReason(StopKind.BUDGET, {"n_trials": plan.n_trials, "further_trials": further})
        case End.ALL:
            return choice.stop or StopReason(StopKind.ALL_TESTED, {"tested": len(trials), "space": space_size})
        case End.WORTH if (reason := _not_worth_it(plan, trials, choice)) is not None:
            return reason
    gains = {"max_gain": choice.max_gain, "max_gain_if_fits": choice.max_gain_if_fits}
    known = {name: gain for name, gain in gains.items() if math.isfinite(gain)}
    numbers = {"margin": plan.margin, "confidence": CONFIDENCE, "untested": choice.untried, **known}
    return StopReason(StopKind.NOTHING_TO_WIN, numbers)


def time_is_over(plan: Plan) -> StopReason:
    """The reason of a search that its time limit ended: it is reached, or leaves too little for another trial."""
    limit, left = {"limit_s": plan.time.seconds or 0.0}, plan.time.seconds_left()
    if plan.time.is_set and left >= 1:
        limit |= {"left_s": left, "rounds": plan.confirmation_rounds}
    return StopReason(StopKind.TIME, limit)


def _not_worth_it(plan: Plan, trials: list[Trial], choice: Choice) -> StopReason | None:
    """The training is too short for another probe to pay; it is an hour without announced steps."""
    best = leader(trials, plan.objective)
    if best is None or best.final.step_time_s is None:
        return None
    training_s, steps = run_seconds(plan.training_steps, best.final.step_time_s), plan.training_steps
    numbers = {"training_s": training_s, "probe_s": choice.seconds} | ({"training_steps": steps} if steps else {})
    promising = f"{choice.promising} (not measured)" if choice.promising else "what you have"
    return StopReason(StopKind.NOT_WORTH_IT, numbers, promising if steps and len(trials) == 1 else "")
