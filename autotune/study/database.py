"""study.db: the search as an Optuna study, asked and told as it happens.

A trial is RUNNING from its beginning, then COMPLETE, PRUNED if it ended early, or FAIL if it crashed or was not measured. Its
intermediate values are the speeds of its first measurement (step 0) and of its confirmation rounds, its value is that of all of
them, and its constraint `fits` holds if it is not above zero. What the folder holds is the truth: trials that differ from it, as
after a kill, are written again.
"""

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.exc
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.pool import NullPool

from autotune.core import Configuration, Outcome, Trial
from autotune.core.errors import StorageFailed
from autotune.sampler.parameters import distributions, parameters
from autotune.sampler.physics import MEASUREMENT, REPEATS
from autotune.space.search_space import SearchSpace
from autotune.study.plan import score
from autotune.study.store import DISK_ADVICE, OPTUNA_STUDY, reporting_storage

LOCKED_S = 60.0
"""Seconds to wait for another process that reads or writes the database."""


class StudyDatabase:
    """The Optuna study of a search in `study.db`.

    objective: samples or tokens / second (`TuningRequest`). sampler: of the study; None for Optuna's default, which is not asked.

    Raises StorageFailed if the disk refuses, from every method.
    """

    def __init__(self, folder: Path, objective: str, sampler: optuna.samplers.BaseSampler | None = None) -> None:
        self.folder, self.objective, self._sampler = folder, objective, sampler
        self._asked: dict[int, optuna.Trial] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self._reporting():
            try:
                self.study = self._opened()
            except (sqlalchemy.exc.DatabaseError, RuntimeError):  # damaged, or of another version of Optuna
                for path in folder.glob(f"{OPTUNA_STUDY}*"):
                    path.unlink()
                self.study = self._opened()

    def _opened(self) -> optuna.Study:
        path, name = (self.folder / OPTUNA_STUDY).absolute(), self.folder.resolve().name
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{path}", {"poolclass": NullPool, "connect_args": {"timeout": LOCKED_S}}
        )
        for other in optuna.get_all_study_names(storage):
            if other != name:  # the folder was renamed
                optuna.delete_study(study_name=other, storage=storage)
        study = optuna.create_study(
            storage=storage,
            sampler=self._sampler,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([self.objective])
        return study

    def update(self, space: SearchSpace, trials: Sequence[Trial], running: Mapping[int, Configuration]) -> None:
        """Ask what has begun, and tell what has ended. space: of the whole search; running: trial number -> configuration."""
        ended = {trial.number: trial for trial in trials}
        wanted = [
            self._ended(space, ended[number]) if number in ended else _unmeasured(space, running.get(number))
            for number in range(max((*ended, *running), default=-1) + 1)
        ]
        with self._reporting():
            there = self.study.get_trials(deepcopy=False)
            changed = [
                number for number, each in enumerate(wanted) if number >= len(there) or not _same(there[number], each)
            ]
            if len(there) > len(wanted) or any(number < len(there) and number not in self._asked for number in changed):
                self._write_again(wanted)
                return
            for number in changed:
                if number in self._asked:
                    self._tell(self._asked.pop(number), wanted[number])
                elif wanted[number].state is TrialState.RUNNING:
                    self._ask(number, wanted[number])
                else:
                    self.study.add_trial(wanted[number])

    def _write_again(self, wanted: Sequence[FrozenTrial]) -> None:
        attributes = self.study.user_attrs
        optuna.delete_study(study_name=self.study.study_name, storage=self.study._storage)
        self.study = self._opened()
        for name, value in attributes.items():
            self.study.set_user_attr(name, value)
        self._asked.clear()
        for number, each in enumerate(wanted):
            if each.state is TrialState.RUNNING:
                self._ask(number, each)
            else:
                self.study.add_trial(each)

    def _ask(self, number: int, wanted: FrozenTrial) -> None:
        self.study.enqueue_trial(wanted.params, user_attrs=wanted.user_attrs)
        self._asked[number] = self.study.ask(wanted.distributions)

    def _tell(self, asked: optuna.Trial, wanted: FrozenTrial) -> None:
        for step, value in wanted.intermediate_values.items():
            asked.report(value, step)
        for name, bound in wanted.constraints.items():
            asked.set_constraint(name, bound)
        for name, value in wanted.user_attrs.items():
            asked.set_user_attr(name, value)
        self.study.tell(asked, wanted.value if wanted.state is TrialState.COMPLETE else None, wanted.state)

    def _ended(self, space: SearchSpace, trial: Trial) -> FrozenTrial:
        """The trial as it is in the study."""
        probe, crashed = trial.measurement, trial.measurement.outcome is Outcome.CRASHED
        state = TrialState.FAIL if crashed else TrialState.PRUNED if probe.ended_early else TrialState.COMPLETE
        values = {0: score(probe, self.objective)} | {
            number: score(each, self.objective) for number, each in zip(trial.rounds, trial.confirmations, strict=True)
        }
        value = score(trial.final, self.objective)
        attributes: dict[str, Any] = {
            "configuration": trial.configuration.sizes_and_settings,
            "outcome": trial.final.outcome.value,
            "reason": trial.disqualified_reason or trial.final.reason,
            "peak_bytes": trial.peak_bytes,
            MEASUREMENT: probe.to_dict(),
            REPEATS: [each.to_dict() for each in trial.confirmations],
        }
        frozen = create_trial(
            state=state,
            value=value if state is TrialState.COMPLETE else values[0] if state is TrialState.PRUNED else None,
            params=parameters(space, trial.configuration),
            distributions=distributions(space),
            user_attrs=json.loads(json.dumps(attributes)),
            intermediate_values={} if crashed else values,
            constraints={} if crashed else {"fits": trial.final.fits},
        )
        if probe.started_s is not None:
            frozen.datetime_start = datetime.fromtimestamp(probe.started_s)
            frozen.datetime_complete = datetime.fromtimestamp(probe.started_s + probe.probe_seconds)
        return frozen

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            with reporting_storage(self.folder):
                yield
        except (sqlalchemy.exc.DBAPIError, optuna.exceptions.StorageInternalError) as error:
            cause = getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error
            raise StorageFailed(f"{self.folder / OPTUNA_STUDY} cannot be written: {cause}.", DISK_ADVICE) from error


def database_of(folder: Path, trials: Sequence[Trial], objective: str) -> StudyDatabase:
    """The database of a study that is not being searched, made from its trials if it has none. Raises StorageFailed."""
    database = StudyDatabase(folder, objective)
    if trials and not database.study.get_trials(deepcopy=False):
        baseline = trials[0].configuration
        values = {name: tuple({trial.configuration.values[name]: None for trial in trials}) for name in baseline.values}
        database.update(SearchSpace(folder.name, baseline.global_batch_size, values, baseline), trials, {})
    return database


def _unmeasured(space: SearchSpace, running: Configuration | None) -> FrozenTrial:
    """A trial that runs, or a number whose trial was begun and not measured."""
    if running is None:
        return create_trial(state=TrialState.FAIL, user_attrs={"reason": "not measured"})
    return create_trial(
        state=TrialState.RUNNING,
        params=parameters(space, running),
        distributions=distributions(space),
        user_attrs={"configuration": running.sizes_and_settings},
    )


def _same(there: FrozenTrial, wanted: FrozenTrial) -> bool:
    """True if both are one trial to those who read the study."""
    names = ("state", "values", "params", "distributions", "user_attrs", "intermediate_values", "constraints")
    return all(getattr(there, name) == getattr(wanted, name) for name in names)
