"""What follows the confirmation: do the finalists learn as float32 does, and does the winner evaluate and save."""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from autotune.core import Configuration, Outcome, Trial
from autotune.core.errors import TimeIsOver
from autotune.core.failures import Failure
from autotune.core.loss_curves import LOSSES, STEPS, Numerics
from autotune.core.sanity import SanityCheck
from autotune.core.time_limit import too_late
from autotune.core.units import format_seconds
from autotune.probe import Probe
from autotune.space.settings import learning_differences
from autotune.study.loop import confirm_finalists, missing_rounds, progress
from autotune.study.loss_check import check_numerics, has_losses, predicted_seconds
from autotune.study.objective import best_trial
from autotune.study.pacing import CHECKED_STEPS, losses_seconds, sanity_check_seconds
from autotune.study.plan import Watch
from autotune.study.sanity_check import check_sanity
from autotune.study.store import reporting_storage
from autotune.study.study import Study

NUMERICS_MOST_S = 300.0
"""Seconds that comparing losses may be expected to take: unless parity is required, those of the answer alone are compared
where all finalists' take longer, and none where that does. Parity or not, none that the time left is too short for."""

MOST_ANSWERS = 4
"""Answers whose losses are compared at most, each after the one before was flagged."""

DEADLINE_S = 600.0
"""Deadline of a training that is not timed, beside ten times what it is foreseen to take."""

LOSSES_LONGEST_S, LOSSES_LONGEST = 60.0, 3.0
"""Seconds that comparing losses may take in all where parity is not required, beside so many times what it is foreseen to:
float32 was perhaps never measured, and can be ten times as slow as the 16 bits that it is foreseen by."""

SANITY_CHECK = "evaluation and checkpoint"
"""What is left out where the time is too short, as the losses are."""

Train = Callable[[str, Configuration, Path, float, Mapping[str, Any]], tuple[Any, Failure | None]]
"""(kind of order, configuration, folder for its files, deadline in seconds, its own options) -> (answer, failure)."""


def finish(
    study: Study,
    probe: Probe,
    train: Train,
    weights: str,
    watch: Watch,
    require_parity: bool = False,
    allow_loss_difference: bool = False,
) -> tuple[Numerics | None, SanityCheck | None]:
    """Compare the finalists' losses with float32's, and rehearse the winner; None, None where nothing fits.

    Unless loss differences are allowed, what is flagged is barred, and where that was the answer the next ones are
    confirmed and compared in its place; the baseline may always win. require_parity: compare however long that takes. What
    there is no time for is None and noted in the study. What was done before an interruption is read from the study's
    folder. weights: where the model's come from, for people. Raises StorageFailed where the disk refuses.
    """
    numerics: Numerics | None = None
    is_settled = False
    for _ in range(MOST_ANSWERS):
        best = best_trial(study.trials, study.plan.objective)
        if best is None:
            return numerics, None
        compared = _numerics(study, best, numerics, train, weights, watch, require_parity)
        if compared is None:
            break
        numerics = compared
        if not allow_loss_difference:
            disqualify_flagged(study.trials, numerics)
        if is_settled := best_trial(study.trials, study.plan.objective) == best:
            break
        confirm_finalists(study, probe, watch)
    if numerics and not is_settled:
        _disqualify_uncompared(study.trials, numerics)
    best = best_trial(study.trials, study.plan.objective)
    rehearsal = None if best is None else _rehearsal(study, best, train, watch)
    missing = {missing_rounds(study): True, LOSSES: compared is None, SANITY_CHECK: best and rehearsal is None}
    study.left_out += [what for what, is_missing in missing.items() if what and is_missing]
    return numerics, rehearsal


def _numerics(
    study: Study,
    best: Trial,
    earlier: Numerics | None,
    train: Train,
    weights: str,
    watch: Watch,
    require_parity: bool,
) -> Numerics | None:
    """None where there is no time. earlier: of answers that were flagged; then this one's losses are compared in any case."""
    before = list(earlier.curves) if earlier else []
    others = [trial for trial in study.trials if trial.confirmed and trial.number not in (best.number, *before)]
    finalists, time = [best.number, *(trial.number for trial in others)], study.plan.time
    place = study.folder / "numerics"
    seconds, most = predicted_seconds(study.trials, finalists), math.inf if require_parity else NUMERICS_MOST_S
    if seconds > most or losses_seconds(study.trials, finalists) > time.seconds_left():  # of all: the answer alone
        finalists = [best.number, *(trial.number for trial in others if has_losses(trial, study.trials[0], place))]
        seconds = predicted_seconds(study.trials, finalists)
    if seconds > most and not earlier:
        said = f"{STEPS} steps of each would take about {format_seconds(seconds)}; --require-parity takes the time"
        return Numerics(problem=said)
    has_begun, until = False, math.inf

    def attempt(configuration: Configuration, seed: int, folder: Path) -> tuple[Any, Failure | None]:
        nonlocal has_begun, until
        if not has_begun:
            foreseen_s = losses_seconds(study.trials, finalists)
            time.check("the losses were compared", foreseen_s)
            until = math.inf if require_parity else monotonic() + LOSSES_LONGEST_S + LOSSES_LONGEST * foreseen_s
            watch(progress(study, "finishing", message=f"comparing losses with fp32's over {STEPS} steps"))
        has_begun = True
        request = {"steps": STEPS, "seed": seed}
        deadline = min(DEADLINE_S + 10 * seconds, max(0.0, until - monotonic()))
        return _train(study, train, "numerics", configuration, folder, deadline, request)

    with reporting_storage(study.folder), contextlib.suppress(TimeIsOver):
        everyone = [number for number in before if number != best.number] + finalists
        return check_numerics(study.trials, everyone, attempt, place, weights)
    return None


def _train(
    study: Study,
    train: Train,
    kind: str,
    configuration: Configuration,
    folder: Path,
    deadline_s: float,
    request: Mapping[str, Any],
) -> tuple[Any, Failure | None]:
    """One training within its deadline; raises TimeIsOver where the search's own came first, KeyboardInterrupt if wished."""
    study.wish.check()
    within = study.plan.time.cut(deadline_s)
    answer, failure = train(kind, configuration, folder, within, request)
    if failure is not None and failure.outcome is Outcome.TIMED_OUT and within < deadline_s:
        raise too_late(f"the {kind} was done")
    return answer, failure


def disqualify_flagged(trials: list[Trial], numerics: Numerics) -> None:
    """Bar in this list what is flagged, and what was not compared and learns as a flagged one does that learns otherwise
    than the baseline; never the baseline, which is the first."""
    baseline = trials[0].configuration
    flagged = [trial for trial in trials[1:] if numerics.flag(trial.number)]
    otherwise = [trial for trial in flagged if learning_differences(trial.configuration, baseline)]

    def reason(trial: Trial) -> str:
        if numerics.is_checked(trial.number):
            return numerics.flag(trial.number)
        for other in otherwise:
            if not learning_differences(trial.configuration, other.configuration):
                return f"learns as trial {other.number}: {numerics.flag(other.number)}"
        return trial.disqualified_reason

    trials[1:] = [replace(trial, disqualified_reason=reason(trial)) for trial in trials[1:]]


def _disqualify_uncompared(trials: list[Trial], numerics: Numerics) -> None:
    """Leave the answer to what was compared and to the baseline, where that runs: what was flagged warns of the rest."""
    if trials[0].feasible:
        why = "its losses were not compared, and those of faster ones differ from fp32's"
        trials[1:] = [
            trial
            if trial.disqualified_reason or numerics.is_checked(trial.number)
            else replace(trial, disqualified_reason=why)
            for trial in trials[1:]
        ]


def _rehearsal(study: Study, best: Trial, train: Train, watch: Watch) -> SanityCheck | None:
    """None where there is no time."""
    deadline = DEADLINE_S + 10 * CHECKED_STEPS * (best.final.step_time_s or 0.0)

    def attempt(configuration: Configuration, folder: Path) -> tuple[Any, Failure | None]:
        study.plan.time.check("evaluation and checkpoint were tried", sanity_check_seconds(best))
        watch(progress(study, "finishing", message="one evaluation batch and one checkpoint at the winner's settings"))
        return _train(study, train, "rehearsal", configuration, folder, deadline, {})

    with reporting_storage(study.folder), contextlib.suppress(TimeIsOver):
        return check_sanity(best.configuration, attempt, study.folder / "rehearsal")
    return None
