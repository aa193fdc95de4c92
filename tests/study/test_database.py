"""study.db while a search runs, after it, and after kills: what Optuna and its dashboard see."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.errors import StorageFailed
from autotune.probe import Probe
from autotune.sampler.physics import trials_of
from autotune.study.database import StudyDatabase, database_of
from autotune.study.loop import search
from autotune.study.store import OPTUNA_STUDY, locked
from autotune.study.study import Study
from tests.makers import ALLOWED, completed, ended, machine, space
from tests.study.test_loop import Stops, opened, replay


def publishing(study: Study) -> StudyDatabase:
    """The study's database, updated whenever a trial begins or is measured."""
    database = StudyDatabase(study.folder, study.plan.objective)
    study.publish = lambda: database.update(study.opened_space, study.trials, study.ledger.unfinished)
    study.publish()
    return database


def searched(folder: Path, probe: Probe | None = None, **plan: object) -> Study:
    with locked(folder):
        study = opened(folder, **plan)
        publishing(study)
        search(study, probe or replay())
        return study


def stored(folder: Path) -> list[FrozenTrial]:
    """The trials as anybody loads them."""
    storage = f"sqlite:///{folder / OPTUNA_STUDY}"
    return optuna.load_study(study_name=folder.name, storage=storage).get_trials()


def agrees(study: Study) -> None:
    """The database holds what the folder's measurements say, and the sampler reads the same trials of both."""
    there = stored(study.folder)
    assert trials_of(there, study.space) == study.trials
    for trial, each in zip(study.trials, there, strict=True):
        assert each.intermediate_values == {
            0: study.plan.score(trial.measurement),
            **dict(zip(trial.rounds, map(study.plan.score, trial.confirmations), strict=True)),
        }
        assert each.constraints == {"fits": trial.final.fits}
        assert each.user_attrs["configuration"] == trial.configuration.sizes_and_settings
        if each.state is TrialState.COMPLETE:
            assert each.value == study.plan.score(trial.final)


def test_a_finished_search_is_there_with_its_repeated_measurements(tmp_path: Path) -> None:
    study = searched(tmp_path, sampler="physics", n_trials=12, confirmation_rounds=2)
    agrees(study)
    assert max(len(trial.confirmations) for trial in study.trials) >= 1


def test_a_trial_is_running_while_it_is_measured_and_told_before_the_next_one_begins(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def world(configuration: Configuration) -> Measurement:
        seen.append([each.state.name for each in stored(tmp_path)])
        return machine(configuration)

    searched(tmp_path, replay(world), n_trials=3)
    assert seen == [["RUNNING"], ["COMPLETE", "RUNNING"], ["COMPLETE", "COMPLETE", "RUNNING"]]


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.MISCONFIGURED, Outcome.CRASHED])
def test_what_does_not_fit_has_the_worst_value_and_breaks_its_constraint_and_a_crash_failed(
    tmp_path: Path, outcome: Outcome
) -> None:
    def world(configuration: Configuration) -> Measurement:
        if configuration == space().baseline:
            return completed(configuration)
        return ended(outcome, held_bytes=2 * ALLOWED, reason=str(configuration))

    searched(tmp_path, replay(world), n_trials=2)
    record = stored(tmp_path)[1]
    assert record.user_attrs["outcome"] == outcome.value
    if outcome is Outcome.CRASHED:
        assert (record.state, record.value, record.constraints) == (TrialState.FAIL, None, {})
    else:
        assert (record.state, record.value, record.constraints) == (TrialState.COMPLETE, 0.0, {"fits": 1.0})


def test_what_ended_early_is_pruned_at_the_speed_that_it_had(tmp_path: Path) -> None:
    def world(configuration: Configuration) -> Measurement:
        return replace(machine(configuration), ended_early=configuration != space().baseline)

    study = searched(tmp_path, replay(world), n_trials=2)
    record = stored(tmp_path)[1]
    assert record.state is TrialState.PRUNED
    assert record.value == study.plan.score(study.trials[1].measurement)


@pytest.mark.parametrize(("at", "is_written"), [(1, False), (3, True)])
def test_after_an_interruption_it_agrees_again_with_what_is_on_disk(tmp_path: Path, at: int, is_written: bool) -> None:
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, Stops(at, tmp_path if is_written else None))
    assert [each.state.name for each in stored(tmp_path)] == ["COMPLETE"] * (at - 1) + ["RUNNING"]
    agrees(searched(tmp_path))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:20_000]),
    "missing": Path.unlink,
    "a trial more": lambda path: optuna.load_study(study_name=None, storage=f"sqlite:///{path}").add_trial(
        optuna.create_trial(value=1.0)
    ),
    "a value changed": lambda path: sqlite3.connect(path).executescript("UPDATE trial_values SET value = 7"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_database_is_made_again_from_the_measurements(tmp_path: Path, what: str) -> None:
    searched(tmp_path, n_trials=2)
    DAMAGES[what](tmp_path / OPTUNA_STUDY)
    agrees(searched(tmp_path, n_trials=2))


def test_attributes_of_the_study_outlive_what_is_written_again(tmp_path: Path) -> None:
    study = searched(tmp_path, n_trials=2)
    database = StudyDatabase(tmp_path, study.plan.objective)
    database.study.set_user_attr("run:wandb", "abc")
    database.update(study.opened_space, study.trials[:1], {})
    assert database.study.user_attrs == {"run:wandb": "abc"}
    assert len(stored(tmp_path)) == 1


def test_a_database_is_made_of_trials_alone_where_a_copy_has_none(tmp_path: Path) -> None:
    study = searched(tmp_path, n_trials=3)
    (tmp_path / OPTUNA_STUDY).unlink()
    database_of(tmp_path, study.trials, study.plan.objective)
    assert [(each.value, each.user_attrs["configuration"]) for each in stored(tmp_path)] == [
        (study.plan.score(trial.final), trial.configuration.sizes_and_settings) for trial in study.trials
    ]


def test_a_disk_that_refuses_is_one_clear_error(tmp_path: Path) -> None:
    study = searched(tmp_path, n_trials=2)
    database = StudyDatabase(tmp_path, study.plan.objective)
    sqlite3.connect(tmp_path / OPTUNA_STUDY).executescript("DROP TABLE trial_values")
    with pytest.raises(StorageFailed, match=r"study\.db cannot be written: no such table"):
        database.update(study.opened_space, [], {})
