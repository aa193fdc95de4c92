"""trackio: one run a study, kept on this machine, or where `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` says."""

from typing import Any

from autotune.report.loggers.events import PROJECT, Ending, LoggedTrial, StudyEvent


def start(study: StudyEvent) -> "Logger":
    """Begin the run or resume it: trackio knows runs by their names."""
    import trackio

    name = study.run if study.resumed else f"{study.name}-{study.run[:6]}"
    run = trackio.init(
        project=PROJECT,
        name=name,
        resume="allow",
        config=dict(study.facts),
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return Logger(run, name)


class Logger:
    """See `autotune.report.loggers.Logger`."""

    def __init__(self, run: Any, name: str) -> None:
        self.run = name
        self._run = run

    def log(self, row: LoggedTrial) -> None:
        """The trial's number is the step."""
        self._run.log(row.flat, step=row.number)

    def finish(self, ending: Ending) -> None:
        """The answer and a table of all trials at the last step, the report's files as an artifact."""
        import trackio

        values = ending.flat | {"trials": trackio.Table(**ending.table_arguments)}
        step = int(ending.table["number"].max()) if len(ending.table) else None
        self._run.log(values, step=step)
        if ending.files:
            artifact = trackio.Artifact(f"report-{self.run}", "report")
            for path in ending.files:
                artifact.add_file(str(path))
            self._run.log_artifact(artifact)
        self._run.finish()
