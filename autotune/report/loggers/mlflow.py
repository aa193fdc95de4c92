"""MLflow: one run a study, where `MLFLOW_TRACKING_URI` says, by MLflow's own default in `mlflow.db` here."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from autotune.report.loggers.events import PROJECT, Ending, LoggedTrial, StudyEvent

LONGEST = 5000
"""Characters of a parameter or tag: MLflow refuses 6001 of the one and 8001 of the other."""


def start(study: StudyEvent) -> "Logger":
    """Begin the run or resume it. Raises MLflow's errors if its store cannot be reached."""
    with _without_tables():
        client = MlflowClient()
        if study.resumed:
            client.update_run(study.run, status="RUNNING")
            return Logger(client, study.run)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        existing = client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else client.create_experiment(name)
        run: str = client.create_run(experiment, run_name=study.name).info.run_id
        client.log_batch(run, params=[Param(key, str(value)[:LONGEST]) for key, value in study.facts.items()])
        return Logger(client, run)


@contextlib.contextmanager
def _without_tables() -> Iterator[None]:
    """Inside, MLflow does not log every table that it creates."""
    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


class Logger:
    """See `autotune.report.loggers.Logger`."""

    def __init__(self, client: MlflowClient, run: str) -> None:
        self.run = run
        self._client = client

    def log(self, row: LoggedTrial) -> None:
        """Metrics; the trial's number is the step. Configurations are in the table: parameters belong to a whole run."""
        self._client.log_batch(self.run, metrics=_metrics(row.numbers, row.number))

    def finish(self, ending: Ending) -> None:
        """The answer as metrics and tags, a table of all trials and the report's files as artifacts."""
        words = ending.words | {f"configuration.{name}": value for name, value in ending.values.items()}
        self._client.log_batch(
            self.run,
            metrics=_metrics({f"answer/{name}": number for name, number in ending.numbers.items()}, len(ending.table)),
            tags=[RunTag(f"answer.{name}", str(value)[:LONGEST]) for name, value in words.items()],
        )
        for path in ending.files:
            self._client.log_artifact(self.run, str(path))
        self._client.set_terminated(self.run, status="FINISHED" if ending.complete else "KILLED")


def _metrics(numbers: dict[str, float], step: int) -> list[Metric]:
    now = int(time.time() * 1000)
    return [Metric(name, number, now, step) for name, number in numbers.items()]
