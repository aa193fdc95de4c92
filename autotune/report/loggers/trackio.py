"""trackio: one run a study, kept on this machine, or where `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` says."""

from typing import Any

from autotune.report.formats import plain_rows
from autotune.report.loggers.events import PROJECT, Ending, Row, Study


def start(study: Study) -> "Logger":
    """Begin the run, or go on in it: trackio knows runs by their names."""
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

    def log(self, row: Row) -> None:
        """The trial's number is the step."""
        told = {"trial": row.number, "outcome": row.outcome, **row.numbers}
        self._run.log(told | {f"configuration/{name}": value for name, value in row.values.items()}, step=row.number)

    def finish(self, ending: Ending) -> None:
        """The answer and a table of all trials at the last step, the report's files as an artifact."""
        import trackio

        told: dict[str, Any] = {f"answer/{name}": value for name, value in (ending.words | ending.numbers).items()}
        told |= {f"answer/configuration/{name}": value for name, value in ending.values.items()}
        step = None
        if ending.table is not None:
            rows = [list(row.values()) for row in plain_rows(ending.table)]
            told["trials"] = trackio.Table(columns=list(ending.table.columns), data=rows)
            step = int(ending.table["number"].max()) if len(ending.table) else None
        self._run.log(told, step=step)
        if ending.files:
            artifact = trackio.Artifact(f"report-{self.run}", "report")
            for path in ending.files:
                artifact.add_file(str(path))
            self._run.log_artifact(artifact)
        self._run.finish()
