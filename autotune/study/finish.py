"""The end of a search: the winner is rehearsed once (a few steps, one evaluation batch and one checkpoint)."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Outcome, read_json, write_json
from autotune.core.errors import TimeIsOver
from autotune.core.failures import Failure
from autotune.core.sanity import SanityCheck, SanityProblem
from autotune.probe.order import CHILD_ANSWER
from autotune.study.pacing import CHECKED_STEPS, sanity_check_seconds
from autotune.study.plan import ProgressKind, Watch
from autotune.study.schedule import missing_losses
from autotune.study.store import reporting_storage
from autotune.study.study import Study

DEADLINE_S = 600.0
"""Deadline of a training that is not timed, beside ten times what it is foreseen to take."""

PROOF, LOSSES, SANITY_CHECK = "the proof of the speed-up", "losses", "evaluation and checkpoint"
"""Parts that are left out if the time is too short."""

KEPT = "sanity_check.json"
"""Result of the sanity check in its folder, for a resumed search."""

Train = Callable[[str, Configuration, Path, float, Mapping[str, Any]], tuple[Any, Failure | None]]
"""(kind of order, configuration, folder for its files, deadline in seconds, its own options) -> (answer, failure)."""


def finish(study: Study, train: Train, watch: Watch) -> SanityCheck | None:
    """Rehearse the winner.

    None if nothing fits, nothing but the baseline was measured to its end, or there is no time, which is noted in the study.

    What was done before an interruption is read from the study's folder. Raises StorageFailed if the disk refuses.
    """
    trials = study.trials
    best = study.standing.answer
    if best is None or not any(trial.number and trial.feasible for trial in trials):
        return None
    deadline_s = DEADLINE_S + 10 * CHECKED_STEPS * (best.final.step_time_s or 0.0)

    def attempt(configuration: Configuration, folder: Path) -> tuple[Any, Failure | None]:
        study.stop_request.check()
        study.plan.time.check("evaluation and checkpoint were tried", sanity_check_seconds(best))
        watch(
            study.progress(
                ProgressKind.FINISHING, message="one evaluation batch and one checkpoint at the winner's settings"
            )
        )
        within = study.plan.time.cut(deadline_s)
        answer, failure = train("sanity_check", configuration, folder, within, {})
        if failure is not None and failure.outcome is Outcome.TIMED_OUT and within < deadline_s:
            raise study.plan.time.too_late("the sanity check was done")
        return answer, failure

    sanity_check = None
    with reporting_storage(study.folder), contextlib.suppress(TimeIsOver):
        sanity_check = check_sanity(best.configuration, attempt, study.folder / "sanity_check")
    missing = {missing_proof(study): True, LOSSES: bool(missing_losses(study)), SANITY_CHECK: sanity_check is None}
    study.ledger.leave_out(*(what for what, is_missing in missing.items() if what and is_missing))
    return sanity_check


def missing_proof(study: Study) -> str:
    """Proof that the fastest trial lacks for lack of time; empty if it lacks nothing, or if another trial is shown as faster."""
    plan, standing = study.plan, study.standing
    answer, fastest = standing.answer, standing.fastest
    if not plan.time.is_set or not plan.confirmation_rounds or answer is None or fastest is None or not fastest.number:
        return ""
    return "" if answer is not standing.compared and standing.is_shown(answer) else PROOF


def check_sanity(
    configuration: Configuration,
    attempt: Callable[[Configuration, Path], tuple[Any, Failure | None]],
    folder: Path,
) -> SanityCheck:
    """Result of a sanity check at this configuration's settings; the result kept in this folder, if there is one.

    attempt: (configuration, folder for its files) -> the answer to a `sanity_check` order, or why there is none.
    Raises OSError if the disk refuses.
    """
    if known := kept(configuration, folder):
        return known
    answer, failure = attempt(configuration, folder)
    if failure is None:
        sanity_check = SanityCheck.from_dict(answer)
    else:
        sanity_check = SanityCheck(problems=(SanityProblem(failure.where, failure.outcome, failure.reason),))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / KEPT, {"configuration": configuration.to_dict(), "sanity_check": sanity_check.to_dict()})
    (folder / CHILD_ANSWER).unlink(missing_ok=True)
    return sanity_check


def kept(configuration: Configuration, folder: Path) -> SanityCheck | None:
    """The sanity check of this configuration that lies in this folder; None if there is no complete one."""
    try:
        data = read_json(folder / KEPT)
        if Configuration.from_dict(data["configuration"]) != configuration:
            return None
        return SanityCheck.from_dict(data["sanity_check"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
