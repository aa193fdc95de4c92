"""What follows the confirmation: do the finalists learn as float32 does, and does the winner evaluate and save."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.ask_and_tell import Study
from autotune.configuration import Configuration
from autotune.confirmation import MOST_GROUPS
from autotune.numerics import STEPS, Numerics
from autotune.objective import best_trial
from autotune.parity import check_numerics, predicted_seconds
from autotune.plan import Watch
from autotune.probe import Probe
from autotune.probe.failures import Failure
from autotune.rehearsal import Rehearsal
from autotune.rehearsing import rehearse
from autotune.study import confirm_finalists, progress
from autotune.study_folder import reporting_storage
from autotune.trial import Trial
from autotune.units import format_seconds

NUMERICS_MOST_S = 300.0
"""Seconds that comparing losses may be foreseen to take, and no longer than the search's own timeout: unless parity is
required, those of the answer alone are compared where all finalists' take longer, and none where that does."""

DEADLINE_S = 600.0
"""Deadline of a training that is not timed, beside ten times what it is foreseen to take."""

REHEARSED_STEPS = 10
"""Steps that a rehearsal is foreseen to take at the most, its evaluation and checkpoint counted as some."""

Train = Callable[[str, Configuration, Path, float, Mapping[str, Any]], tuple[Any, Failure | None]]
"""(kind of order, configuration, folder for its files, deadline in seconds, its own options) -> (answer, failure)."""


def finish(
    study: Study, probe: Probe, train: Train, weights: str, watch: Watch, require_parity: bool
) -> tuple[Numerics | None, Rehearsal | None]:
    """Compare the finalists' losses with float32's, and rehearse the winner; None, None where nothing fits.

    With require_parity a finalist that is flagged is barred, and the next ones are confirmed in its place. What was
    done before an interruption is read from the study's folder. weights: where the model's come from, for people.
    Raises StorageFailed where the disk refuses.
    """
    numerics = None
    for _ in range(MOST_GROUPS):
        best = best_trial(study.trials, study.plan.objective)
        if best is None:
            return numerics, None
        numerics = _numerics(study, best, train, weights, watch, require_parity)
        if not require_parity or not _bar(study.trials, numerics):
            break
        confirm_finalists(study, probe, watch)
    best = best_trial(study.trials, study.plan.objective)
    return numerics, None if best is None else _rehearsal(study, best, train, watch)


def _numerics(study: Study, best: Trial, train: Train, weights: str, watch: Watch, require_parity: bool) -> Numerics:
    others = [trial.number for trial in study.trials if trial.confirmed and trial.number != best.number]
    finalists = [best.number, *others]
    foreseen = predicted_seconds(study.trials, finalists)
    most = min(NUMERICS_MOST_S, study.plan.timeout_s or NUMERICS_MOST_S)
    if foreseen > most and not require_parity:  # of all: the answer alone
        finalists = finalists[:1]
        foreseen = predicted_seconds(study.trials, finalists)
    if foreseen > most and not require_parity:
        said = f"{STEPS} steps of each would take about {format_seconds(foreseen)}; --require-parity takes the time"
        return Numerics(problem=said)
    watch(progress(study, "finishing", message=f"comparing losses with fp32's over {STEPS} steps"))

    def attempt(configuration: Configuration, seed: int, folder: Path) -> tuple[Any, Failure | None]:
        study.wish.check()
        request = {"steps": STEPS, "seed": seed}
        return train("numerics", configuration, folder, DEADLINE_S + 10 * foreseen, request)

    with reporting_storage(study.folder):
        return check_numerics(study.trials, finalists, attempt, study.folder / "numerics", weights)


def _bar(trials: list[Trial], numerics: Numerics) -> bool:
    """Bar what is flagged; whether any was that was not before."""
    before = [trial.barred for trial in trials]
    trials[:] = [replace(trial, barred=numerics.flag(trial.number) or trial.barred) for trial in trials]
    return before != [trial.barred for trial in trials]


def _rehearsal(study: Study, best: Trial, train: Train, watch: Watch) -> Rehearsal:
    watch(progress(study, "finishing", message="one evaluation batch and one checkpoint at the winner's settings"))
    deadline = DEADLINE_S + 10 * REHEARSED_STEPS * (best.final.step_time_s or 0.0)

    def attempt(configuration: Configuration, folder: Path) -> tuple[Any, Failure | None]:
        study.wish.check()
        return train("rehearsal", configuration, folder, deadline, {})

    with reporting_storage(study.folder):
        return rehearse(best.configuration, attempt, study.folder / "rehearsal")
