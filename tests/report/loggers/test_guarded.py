"""A logger never loses a search: it fails, hangs or ends the process, and is told of once."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.core.errors import InvalidRequest
from autotune.core.note import Note, NoteKind
from autotune.core.prospect import OptimalityGap
from autotune.core.request import check_installed
from autotune.report.loggers import guarded
from autotune.report.loggers.events import Ending, LoggedTrial, StudyEvent
from autotune.study.plan import Progress, ProgressKind
from autotune.study.store import RUNS, remove_study
from tests.report.loggers.studies import begun, result, told

pytestmark = pytest.mark.filterwarnings(
    "ignore:distutils Version classes are deprecated:DeprecationWarning",  # tensorboard's own stub of TensorFlow
)


class Recorder:
    """A logger that records its calls, and fails at a given trial."""

    def __init__(self, fails_at: int | None = None, error: BaseException | None = None) -> None:
        self.run, self.rows, self.endings = "a-run", list[LoggedTrial](), list[Ending]()
        self.fails_at, self.error = fails_at, error

    def start(self, study: StudyEvent) -> "Recorder":
        self.study = study
        print("a library's greeting")
        return self

    def log(self, row: LoggedTrial) -> None:
        if row.number == self.fails_at:
            if self.error is None:
                threading.Event().wait()  # for ever
            raise self.error
        self.rows.append(row)

    def finish(self, ending: Ending) -> None:
        self.endings.append(ending)


def use(monkeypatch: pytest.MonkeyPatch, logger: Recorder) -> Recorder:
    monkeypatch.setitem(sys.modules, "autotune.report.loggers.wandb", logger)
    return logger


@pytest.mark.parametrize("error", [ConnectionError("no route to host"), SystemExit(1)])
def test_a_logger_that_fails_is_told_of_once_and_dropped(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = use(monkeypatch, Recorder(fails_at=1, error=error))
    study = result("wandb", "tensorboard")
    loggers = begun(study, tmp_path / "study")
    for count in (1, 2, 3):
        loggers.log(study.trials[:count])
    loggers.finish(study)
    assert [row.number for row in recorder.rows] == [0]
    assert recorder.endings == []
    (problem,) = loggers.problems
    assert problem == Note(NoteKind.LOGGER, detail=f"wandb ({type(error).__name__})")
    printed = capsys.readouterr()
    assert f"({type(error).__name__}: {error})" in printed.err
    assert printed.err.count("Warning:") == 1
    assert printed.out == ""
    assert json.loads((tmp_path / "study" / RUNS).read_text())["tensorboard"]["last"] == 2


def test_a_logger_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "PATIENCE_S", 0.2)
    recorder = use(monkeypatch, Recorder(fails_at=0))
    study = result("wandb")
    loggers = begun(study, tmp_path / "study")
    loggers.log(study.trials)
    loggers.finish(study)
    assert "no answer" in loggers.problems[0].detail
    assert recorder.endings == []


def test_a_disk_that_refuses_drops_the_logger_only(tmp_path: Path) -> None:
    study = result("tensorboard")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "tensorboard").write_text("a file where a folder should be")
    assert "FileExistsError" in begun(study, tmp_path / "study").problems[0].detail


def test_what_was_told_before_is_not_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = use(monkeypatch, Recorder())
    study = result("wandb")
    told(study, tmp_path / "study")
    told(study, tmp_path / "study", already=3)
    assert [row.number for row in recorder.rows] == [0, 1, 2]
    assert len(recorder.endings) == 2
    assert recorder.study.resumed
    assert recorder.study.run == "a-run"


def test_a_trial_that_ends_after_a_later_one_of_another_device_is_logged_too_and_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = use(monkeypatch, Recorder())
    study = result("wandb")
    loggers = begun(study, tmp_path / "study")
    first, second, third = study.trials
    loggers.log([first])
    loggers.log([first, third])
    assert [row.number for row in recorder.rows] == [0]
    loggers.log([first, second, third])
    assert [row.number for row in recorder.rows] == [0, 1, 2]


def test_a_trial_that_was_not_measured_when_its_search_ended_is_logged_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = use(monkeypatch, Recorder())
    study = result("wandb")
    told(replace(study, trials=[study.trials[0], study.trials[2]]), tmp_path / "study")
    assert [row.number for row in recorder.rows] == [0, 2]
    assert json.loads((tmp_path / "study" / RUNS).read_text())["wandb"]["missing"] == [1]
    told(study, tmp_path / "study", already=2)
    assert [row.number for row in recorder.rows] == [0, 2, 1]
    assert json.loads((tmp_path / "study" / RUNS).read_text()) == {"wandb": {"run": "a-run", "last": 2}}


def test_a_study_begun_again_or_with_a_damaged_note_of_its_runs_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = use(monkeypatch, Recorder())
    study = result("wandb", "tensorboard")
    told(study, tmp_path / "study")
    remove_study(tmp_path / "study", ())
    assert not (tmp_path / "study" / RUNS).exists()
    assert not (tmp_path / "study" / "tensorboard").exists()
    begun(study, tmp_path / "study")
    assert not recorder.study.resumed
    (tmp_path / "study" / RUNS).write_text('{"wandb": {"run"')
    told(result("wandb"), tmp_path / "study")
    assert not recorder.study.resumed
    assert len(recorder.rows) == 6


def test_without_loggers_the_watch_is_the_caller_s_own_and_nothing_is_written(tmp_path: Path) -> None:
    def watch(progress: object) -> None: ...

    loggers = begun(result(), tmp_path / "study")
    assert loggers.watching(watch) is watch
    loggers.finish(result())
    assert list((tmp_path / "study").iterdir()) == []


def test_a_missing_library_is_named_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.core.request.find_spec", lambda name: None if name == "wandb" else object())
    check_installed(("tensorboard",))
    with pytest.raises(InvalidRequest, match=r"pip install 'hf-autotune\[wandb\]'"):
        check_installed(("tensorboard", "wandb"))


def test_what_is_said_from_within_a_signal_s_handler_tells_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = use(monkeypatch, Recorder())
    study = result("wandb")
    seen: list[Progress] = []
    watch = begun(study, tmp_path / "study").watching(seen.append)
    watch(Progress(ProgressKind.STOPPING, tuple(study.trials)))
    assert recorder.rows == []
    watch(Progress(ProgressKind.TRIAL, tuple(study.trials)))
    assert [row.number for row in recorder.rows] == [0, 1, 2]
    assert len(seen) == 2


def test_no_password_or_place_of_an_error_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "https://me:pass@word@tracker.org/api"
    message = f"POST {url}: no /home/me/runs/key, sqlite:////home/me/mlflow.db, sk-abcdefghijklmnop1"
    use(monkeypatch, Recorder(fails_at=0, error=OSError(message)))
    study = result("wandb")
    loggers = begun(study, tmp_path / "study")
    loggers.log(study.trials)
    assert loggers.problems == [Note(NoteKind.LOGGER, detail="wandb (OSError)")]
    shown = "(OSError: POST https://…@tracker.org/api: no …/key, sqlite:…/mlflow.db, (a token))"
    assert shown in capsys.readouterr().err


def test_told_afterwards_a_study_says_too_what_could_still_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = use(monkeypatch, Recorder())
    study = replace(result("wandb"), prospects={0: OptimalityGap(0.2, 0.5, 9), 1: OptimalityGap(0.0, float("inf"), 8)})
    study.save(tmp_path / "study")
    begun(study, tmp_path / "study").finish(study)
    assert [row.numbers.get("untried_could_win") for row in recorder.rows] == [None, 0.5, None]


def test_where_the_known_run_is_gone_a_new_one_is_told_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(Recorder):
        def start(self, study: StudyEvent) -> Recorder:
            if study.resumed:
                raise ConnectionError(f"there is no run {study.run}")
            self.run = study.run
            return super().start(study)

    recorder = use(monkeypatch, Forgetful())
    study = result("wandb")
    told(study, tmp_path / "study")
    first = recorder.run
    told(study, tmp_path / "study", already=3)
    assert [row.number for row in recorder.rows] == [0, 1, 2, 0, 1, 2]
    assert recorder.run != first
    assert json.loads((tmp_path / "study" / RUNS).read_text()) == {"wandb": {"run": recorder.run, "last": 2}}


def test_a_logger_that_starts_too_late_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Recorder):
        def start(self, study: StudyEvent) -> Recorder:
            waited.wait()
            return super().start(study)

    waited, before = threading.Event(), set(threading.enumerate())
    monkeypatch.setattr(guarded, "PATIENCE_S", 0.05)
    recorder = use(monkeypatch, Late())
    study = result("wandb")
    loggers = begun(study, tmp_path / "study")
    (late,) = set(threading.enumerate()) - before
    waited.set()
    late.join()
    loggers.log(study.trials)
    assert recorder.rows == []
    assert not (tmp_path / "study" / RUNS).exists()


def test_logged_afterwards_an_interrupted_study_is_not_called_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = use(monkeypatch, Recorder())
    replace(result(), complete=False).save(tmp_path / "study")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "study"), "--report-to", "wandb", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["best"]["number"] == 1
    assert [ending.complete for ending in recorder.endings] == [False]
