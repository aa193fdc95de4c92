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
from autotune.core.prospect import OptimalityGap
from autotune.core.request import check_installed
from autotune.report.loggers import guarded
from autotune.report.loggers.events import Ending, Row, StudyEvent
from autotune.study.plan import Progress
from autotune.study.store import RUNS, remove_study
from tests.report.loggers.studies import begun, result, told

pytestmark = pytest.mark.filterwarnings(
    "ignore:distutils Version classes are deprecated:DeprecationWarning",  # tensorboard's own stub of TensorFlow
)


class Kept:
    """A logger that keeps what it is told, and fails where it is asked to."""

    def __init__(self, fails_at: int | None = None, error: BaseException | None = None) -> None:
        self.run, self.rows, self.endings = "a-run", list[Row](), list[Ending]()
        self.fails_at, self.error = fails_at, error

    def start(self, study: StudyEvent) -> "Kept":
        self.study = study
        print("a library's greeting")
        return self

    def log(self, row: Row) -> None:
        if row.number == self.fails_at:
            if self.error is None:
                threading.Event().wait()  # for ever
            raise self.error
        self.rows.append(row)

    def finish(self, ending: Ending) -> None:
        self.endings.append(ending)


def use(monkeypatch: pytest.MonkeyPatch, logger: Kept) -> Kept:
    monkeypatch.setitem(sys.modules, "autotune.report.loggers.wandb", logger)
    return logger


@pytest.mark.parametrize("error", [ConnectionError("no route to host"), SystemExit(1)])
def test_a_logger_that_fails_is_told_of_once_and_dropped(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = use(monkeypatch, Kept(fails_at=1, error=error))
    made = result("wandb", "tensorboard")
    loggers = begun(made, tmp_path / "study")
    for count in (1, 2, 3):
        loggers.log(made.trials[:count])
    loggers.finish(made, complete=True)
    assert [row.number for row in kept.rows] == [0]
    assert kept.endings == []
    (problem,) = loggers.problems
    assert f"the logger wandb was given up ({type(error).__name__})" in problem
    printed = capsys.readouterr()
    assert f"({type(error).__name__}: {error})" in printed.err
    assert printed.err.count("Warning:") == 1
    assert printed.out == ""
    assert json.loads((tmp_path / "study" / RUNS).read_text())["tensorboard"]["last"] == 2


def test_a_logger_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "PATIENCE_S", 0.2)
    kept = use(monkeypatch, Kept(fails_at=0))
    made = result("wandb")
    loggers = begun(made, tmp_path / "study")
    loggers.log(made.trials)
    loggers.finish(made, complete=True)
    assert "no answer" in loggers.problems[0]
    assert kept.endings == []


def test_a_disk_that_refuses_drops_the_logger_only(tmp_path: Path) -> None:
    made = result("tensorboard")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "tensorboard").write_text("a file where a folder should be")
    assert "FileExistsError" in begun(made, tmp_path / "study").problems[0]


def test_what_was_told_before_is_not_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = use(monkeypatch, Kept())
    made = result("wandb")
    told(made, tmp_path / "study")
    told(made, tmp_path / "study", already=3)
    assert [row.number for row in kept.rows] == [0, 1, 2]
    assert len(kept.endings) == 2
    assert kept.study.resumed
    assert kept.study.run == "a-run"


def test_a_study_begun_again_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = use(monkeypatch, Kept())
    made = result("wandb", "tensorboard")
    told(made, tmp_path / "study")
    remove_study(tmp_path / "study", ())
    assert not (tmp_path / "study" / RUNS).exists()
    assert not (tmp_path / "study" / "tensorboard").exists()
    begun(made, tmp_path / "study")
    assert not kept.study.resumed


def test_a_damaged_note_of_the_runs_begins_them_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = use(monkeypatch, Kept())
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / RUNS).write_text('{"wandb": {"run"')
    told(result("wandb"), tmp_path / "study")
    assert not kept.study.resumed
    assert len(kept.rows) == 3


def test_without_loggers_the_watch_is_the_caller_s_own_and_nothing_is_written(tmp_path: Path) -> None:
    def watch(progress: object) -> None: ...

    loggers = begun(result(), tmp_path / "study")
    assert loggers.watching(watch) is watch
    loggers.finish(result(), complete=True)
    assert list((tmp_path / "study").iterdir()) == []


def test_a_missing_library_is_named_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.core.request.find_spec", lambda name: None if name == "wandb" else object())
    check_installed(("tensorboard",))
    with pytest.raises(InvalidRequest, match=r"pip install 'hf-autotune\[wandb\]'"):
        check_installed(("tensorboard", "wandb"))


def test_what_is_said_from_within_a_signal_s_handler_tells_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = use(monkeypatch, Kept())
    made = result("wandb")
    seen: list[Progress] = []
    watch = begun(made, tmp_path / "study").watching(seen.append)
    watch(Progress("stopping", tuple(made.trials)))
    assert kept.rows == []
    watch(Progress("trial", tuple(made.trials)))
    assert [row.number for row in kept.rows] == [0, 1, 2]
    assert len(seen) == 2


def test_no_password_or_place_of_an_error_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "POST https://me:pass@word@tracker.org/api: no /home/me/runs/key, sqlite:////home/me/mlflow.db, sk-abcdefghijklmnop1"
    use(monkeypatch, Kept(fails_at=0, error=OSError(said)))
    made = result("wandb")
    loggers = begun(made, tmp_path / "study")
    loggers.log(made.trials)
    assert loggers.problems == ["the logger wandb was given up (OSError); the search itself is not affected"]
    shown = "(OSError: POST https://…@tracker.org/api: no …/key, sqlite:…/mlflow.db, (a token))"
    assert shown in capsys.readouterr().err


def test_told_afterwards_a_study_says_too_what_could_still_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = use(monkeypatch, Kept())
    made = replace(result("wandb"), prospects={0: OptimalityGap(0.2, 0.5, 9), 1: OptimalityGap(0.0, float("inf"), 8)})
    made.save(tmp_path / "study")
    begun(made, tmp_path / "study").finish(made, complete=True)
    assert [row.numbers.get("untried_could_win") for row in kept.rows] == [None, 0.5, None]


def test_where_the_known_run_is_gone_a_new_one_is_told_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(Kept):
        def start(self, study: StudyEvent) -> Kept:
            if study.resumed:
                raise ConnectionError(f"there is no run {study.run}")
            self.run = study.run
            return super().start(study)

    kept = use(monkeypatch, Forgetful())
    made = result("wandb")
    told(made, tmp_path / "study")
    first = kept.run
    told(made, tmp_path / "study", already=3)
    assert [row.number for row in kept.rows] == [0, 1, 2, 0, 1, 2]
    assert kept.run != first
    assert json.loads((tmp_path / "study" / RUNS).read_text()) == {"wandb": {"run": kept.run, "last": 2}}


def test_a_logger_that_starts_too_late_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Kept):
        def start(self, study: StudyEvent) -> Kept:
            waited.wait()
            return super().start(study)

    waited, before = threading.Event(), set(threading.enumerate())
    monkeypatch.setattr(guarded, "PATIENCE_S", 0.05)
    kept = use(monkeypatch, Late())
    made = result("wandb")
    loggers = begun(made, tmp_path / "study")
    (late,) = set(threading.enumerate()) - before
    waited.set()
    late.join()
    loggers.log(made.trials)
    assert kept.rows == []
    assert not (tmp_path / "study" / RUNS).exists()


@pytest.mark.parametrize("complete", [True, False])
def test_told_afterwards_an_interrupted_study_is_not_called_complete(
    complete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = use(monkeypatch, Kept())
    replace(result(), complete=complete).save(tmp_path / "study")
    words = ["report", str(tmp_path / "study"), "--report-to", "wandb", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["best"]["number"] == 1
    assert [ending.complete for ending in kept.endings] == [complete]
