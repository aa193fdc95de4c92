"""Weights & Biases: one run a study, online or offline as `WANDB_MODE` says; nothing of the machine is collected."""

import contextlib
from collections.abc import Iterator

import wandb
from wandb.sdk.wandb_run import Run

from autotune.report.loggers.events import PROJECT, Ending, LoggedTrial, StudyEvent

OWN = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "host": PROJECT,
    "init_timeout": 45,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
"""Only a study's facts are logged: no terminal, repository, code, arguments, host, packages or hardware readings."""


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Within, wandb neither writes to the terminal nor asks for a key there; afterwards it is as it was."""
    before = wandb.Settings(silent=wandb.setup().settings.silent)
    wandb.termsetup(wandb.setup(wandb.Settings(silent=True)).settings, None)
    try:
        yield
    finally:
        wandb.termsetup(wandb.setup(before).settings, None)


@_silent()
def start(study: StudyEvent) -> "Logger":
    """Begin the run or resume it. Raises wandb's errors if nobody is logged in or no server answers."""
    settings = wandb.Settings(**OWN)
    run = wandb.init(
        project=settings.project or PROJECT,
        name=study.name,
        id=study.run,
        resume="allow" if study.resumed and settings.mode != "offline" else None,
        config=dict(study.facts),
        settings=settings,
        reinit="create_new",
    )
    return Logger(run)


class Logger:
    """See `autotune.report.loggers.Logger`."""

    def __init__(self, run: Run) -> None:
        self.run: str = run.id
        self._run = run

    @_silent()
    def log(self, row: LoggedTrial) -> None:
        """A row of the history; the trial's number is its step, so that two offline parts of a run fit together."""
        self._run.log(row.flat, step=row.number, commit=True)

    @_silent()
    def finish(self, ending: Ending) -> None:
        """The answer in the summary with a table of all trials, the report's files as an artifact."""
        self._run.summary.update(ending.flat)
        self._run.summary["trials"] = wandb.Table(**ending.table_arguments)
        if ending.files:
            artifact = wandb.Artifact(f"report-{self.run}", type="report")
            for path in ending.files:
                artifact.add_file(str(path))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if ending.complete else 1)
