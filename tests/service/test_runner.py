"""The child process of a search: what it reads, what it writes, and how it ends."""

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.commands.result import TuningResult
from autotune.core.errors import DeviceInUse
from autotune.service.runner import _search
from tests.probe.processes import becomes_true, started_in
from tests.service.searches import REQUEST, Replaying


class Runner:
    """A runner as the dispatcher starts it, in this folder."""

    def __init__(self, folder: Path, replaying: Replaying) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        with (folder / "runner.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "autotune.service.runner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=replaying.environment | {"AUTOTUNE_TEST": str(folder)},
                start_new_session=True,
            )
        self.messages: list[dict[str, Any]] = []

    def order(self, run: str = "1", **options: Any) -> "Runner":
        options = {**REQUEST, "device": "cpu", "output_dir": str(self.folder), "study_name": "study", **options}
        order = {"run": run, "options": options, "cores": [*os.sched_getaffinity(0)]}
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(order)}\n".encode())
        self.process.stdin.flush()
        return self

    def end(self) -> dict[str, Any] | None:
        """Read to the end; what it is said to be, and exit code 0, or None and another one."""
        assert self.process.stdout is not None
        self.messages += [json.loads(line) for line in self.process.stdout if line.strip()]
        code = self.process.wait(60)
        ends = [message["end"] for message in self.messages if "end" in message]
        assert (code == 0) == bool(ends), (code, (self.folder / "runner.log").read_text())
        assert "end" not in dict(pair for message in self.messages[:-1] for pair in message.items())
        return ends[0] if ends else None

    def close(self) -> None:
        """What reads its input is gone, and so is it in a moment."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [message["event"] for message in self.messages if "event" in message]

    def keys(self, kind: str) -> list[str]:
        return [event["key"] for event in self.events if event["kind"] == kind]


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[[Path, Replaying], Runner]]:
    """Starts a runner; it is ended with the tests of this file."""
    runners: list[Runner] = []

    def start(folder: Path, replaying: Replaying) -> Runner:
        runners.append(Runner(folder / "search", replaying))
        return runners[-1]

    yield start
    for runner in runners:
        runner.close()


Start = Callable[[Path, Replaying], Runner]
Finished = tuple[Runner, dict[str, Any]]


@pytest.fixture(scope="module")
def finished(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    runner = start(folder, Replaying(folder / "replaying")).order()
    end = runner.end()
    assert end is not None
    return runner, end


def test_a_search_sends_its_trials_and_rounds_once_and_its_end_last(finished: Finished) -> None:
    runner, end = finished
    result = TuningResult.load(runner.folder / "study")
    assert end["state"] == "done"
    assert "problem" not in end
    assert end["result"] == {name: value for name, value in result.to_dict().items() if name != "folder"}
    assert (end["headline"], end["statement"]) == (end["result"]["headline"], result.stop_reason)
    assert runner.keys("trial") == [f"trial:{trial.number}" for trial in result.trials]
    rounds = [f"round:{trial.number}:{number}" for trial in result.trials for number in trial.rounds]
    assert sorted(runner.keys("confirmed")) == sorted(rounds)
    assert len(rounds) >= 2
    others = [event["key"] for event in runner.events if event["kind"] not in ("trial", "confirmed")]
    assert others == list(dict.fromkeys(others))
    assert {key.partition(":")[0] for key in others} == {"preparing", "progress"}
    assert (runner.events[0]["kind"], runner.events[0]["body"]["doing"]) == (
        "preparing",
        "reading device, model and data",
    )


def test_nothing_that_is_sent_or_kept_names_a_folder_of_the_server(finished: Finished) -> None:
    runner, end = finished
    for content in (json.dumps(runner.messages), *(read(runner.folder / name) for name in end["files"])):
        assert str(runner.folder.parent) not in content
        assert str(Path(__file__).parents[2]) not in content


def read(path: Path) -> str:
    """All texts of a file, in an archive too."""
    if path.suffix != ".gz":
        return path.read_bytes().decode(errors="replace")
    with tarfile.open(path) as archive:
        return "".join(archive.extractfile(member).read().decode() for member in archive)


def test_the_archive_holds_the_study(finished: Finished, tmp_path: Path) -> None:
    runner, end = finished
    names = {Path(name).name for name in end["files"]}
    assert names >= {"request.json", "result.json", "report.html", "summary.md", "trials.csv", "study.tar.gz"}
    with tarfile.open(fileobj=io.BytesIO((runner.folder / "artifacts" / "study.tar.gz").read_bytes())) as archive:
        archive.extractall(tmp_path, filter="data")
    fetched, result = TuningResult.load(tmp_path), TuningResult.load(runner.folder / "study")
    assert fetched.trials == result.trials
    assert fetched.to_dict() | {"folder": None} == result.to_dict() | {"folder": None}


def test_a_second_run_of_a_finished_search_sends_the_same(finished: Finished, start: Start) -> None:
    runner, end = finished
    again = start(runner.folder.parent, Replaying(runner.folder.parent / "again")).order(run="2")
    assert again.end() == end
    assert (again.keys("trial"), sorted(again.keys("confirmed"))) == (
        runner.keys("trial"),
        sorted(runner.keys("confirmed")),
    )
    assert not set(again.keys("progress")) & set(runner.keys("progress"))


def test_a_search_whose_server_is_gone_keeps_its_report_and_says_nothing(
    replaying: Replaying, start: Start, tmp_path: Path
) -> None:
    replaying.hold()
    runner = start(tmp_path, replaying).order()
    assert becomes_true(lambda: bool(replaying.executed), 60)
    assert runner.process.stdin is not None
    runner.process.stdin.close()
    assert runner.end() is None
    assert TuningResult.load(tmp_path / "search" / "study").stop_reason == "ended by SIGTERM"
    assert becomes_true(lambda: not started_in(tmp_path / "search"), 20)


def test_a_runner_without_an_order_ends(replaying: Replaying, start: Start, tmp_path: Path) -> None:
    runner = start(tmp_path, replaying)
    assert runner.process.stdin is not None
    runner.process.stdin.close()
    assert runner.end() is None
    assert not (tmp_path / "search" / "study").exists()


@pytest.mark.parametrize(
    ("options", "state", "kind", "words"),
    [
        pytest.param({"memory_limit": "60MiB"}, "nothing_fits", "NothingFits", "MiB", marks=pytest.mark.nightly),
        ({"fix": {"precision": "fp17"}}, "failed", "InvalidRequest", "fp17"),
        ({"device": "cuda:7"}, "failed", "InvalidRequest", "cuda:7"),
    ],
)
def test_an_error_is_its_message_and_advice(
    options: dict[str, Any], state: str, kind: str, words: str, replaying: Replaying, start: Start, tmp_path: Path
) -> None:
    end = start(tmp_path, replaying).order(**options).end()
    assert end is not None
    assert (end["state"], end["problem"]["type"]) == (state, kind)
    assert words in end["problem"]["message"]
    assert end["problem"]["advice"]
    assert end["headline"] == end["problem"]["message"]


def test_an_unexpected_error_is_named_and_its_traceback_is_in_the_log(
    replaying: Replaying, start: Start, tmp_path: Path
) -> None:
    end = start(tmp_path, replaying).order(fix=5).end()
    assert end is not None
    assert (end["state"], end["problem"]["type"]) == ("failed", "TypeError")
    assert "not iterable" in end["problem"]["message"]
    assert "Traceback" in (tmp_path / "search" / "runner.log").read_text()


def test_a_host_that_cannot_start_is_worth_another_attempt(start: Start, tmp_path: Path) -> None:
    runner = start(tmp_path, Replaying(tmp_path / "replaying", recording="/nowhere/at/all")).order()
    end = runner.end()
    assert end is not None
    assert (end["state"], end["problem"]["type"]) == ("interrupted", "ProbeHostFailed")


def test_a_gpu_that_another_search_holds_is_worth_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(**_: object) -> None:
        raise DeviceInUse("Another search uses it.", "Wait for it.")

    monkeypatch.setattr("autotune.commands.search.search", search)
    end = _search({}, SimpleNamespace(watch=lambda progress: None), threading.Event())
    assert end is not None
    assert (end["state"], end["problem"]["type"]) == ("interrupted", "DeviceInUse")
