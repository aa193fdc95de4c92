"""What follows the confirmation: do the finalists learn as float32 does, and does the winner evaluate and save."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.configuration import Configuration
from autotune.confirmation import MOST_GROUPS
from autotune.numerics import STEPS, Numerics
from autotune.objective import best_trial
from autotune.parity import check_numerics, predicted_seconds
from autotune.plan import Watch
from autotune.probe.failures import Failure
from autotune.probe.live import LiveProbe
from autotune.rehearsal import Rehearsal
from autotune.rehearsing import rehearse
from autotune.study import Study, confirm_finalists, progress
from autotune.study_folder import reporting_storage
from autotune.trial import Trial
from autotune.units import format_seconds
from autotune.workload import Workload

NUMERICS_MOST_S = 300.0
"""Seconds that comparing losses may be foreseen to take; longer ones are left out unless parity is required."""

DEADLINE_S = 600.0
"""Deadline of a training that is not timed, beside ten times what it is foreseen to take."""


def finish(
    study: Study, probe: LiveProbe, watch: Watch, require_parity: bool
) -> tuple[Numerics | None, Rehearsal | None]:
    """Compare the finalists' losses with float32's, and rehearse the winner; both None where nothing fits.

    With require_parity a finalist that is flagged is barred, and the next ones are confirmed in its place. What was
    done before an interruption is read from the study's folder. Raises StorageFailed where the disk refuses.
    """
    numerics = None
    for _ in range(MOST_GROUPS):
        best = best_trial(study.trials, study.plan.objective)
        if best is None:
            return numerics, None
        numerics = _numerics(study, probe, watch, best, require_parity)
        if not require_parity or not _bar(study.trials, numerics):
            break
        confirm_finalists(study, probe, watch)
    best = best_trial(study.trials, study.plan.objective)
    return numerics, None if best is None else _rehearsal(study, probe, watch, best)


def _numerics(study: Study, probe: LiveProbe, watch: Watch, best: Trial, required: bool) -> Numerics:
    others = [trial.number for trial in study.trials if trial.confirmed and trial.number != best.number]
    finalists = [best.number, *others]
    foreseen = predicted_seconds(study.trials, finalists)
    if foreseen > NUMERICS_MOST_S and not required:
        said = f"{STEPS} steps of each would take about {format_seconds(foreseen)}; --require-parity takes the time"
        return Numerics(problem=said)
    watch(progress(study, "finishing", message=f"comparing losses with fp32's over {STEPS} steps"))

    def train(configuration: Configuration, seed: int, folder: Path) -> tuple[Any, Failure | None]:
        deadline = DEADLINE_S + 10 * foreseen
        request = {"steps": STEPS, "seed": seed}
        return probe.host.attempt(probe.order(configuration, "numerics", folder, deadline, request=request))

    with reporting_storage(study.folder):
        return check_numerics(study.trials, finalists, train, study.folder / "numerics", _weights(probe.workload))


def _weights(workload: Workload) -> str:
    if workload.user_objects:
        return "weights as model_init makes them"
    return "the model's own weights" if workload.weights else "random weights"


def _bar(trials: list[Trial], numerics: Numerics) -> bool:
    """Bar what is flagged; whether any was that was not before."""
    before = [trial.barred for trial in trials]
    trials[:] = [replace(trial, barred=numerics.flag(trial.number) or trial.barred) for trial in trials]
    return before != [trial.barred for trial in trials]


def _rehearsal(study: Study, probe: LiveProbe, watch: Watch, best: Trial) -> Rehearsal:
    watch(progress(study, "finishing", message="one evaluation batch and one checkpoint at the winner's settings"))
    deadline = DEADLINE_S + 30 * (best.final.step_time_s or 0.0)

    def attempt(configuration: Configuration, folder: Path) -> tuple[Any, Failure | None]:
        return probe.host.attempt(probe.order(configuration, "rehearsal", folder, deadline))

    with reporting_storage(study.folder):
        return rehearse(best.configuration, attempt, study.folder / "rehearsal")

