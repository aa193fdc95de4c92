"""Promised against got: a real study verified, and what is said where that cannot be or does not hold."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import autotune
from autotune.cli.app import app
from autotune.commands.result import TuningResult
from autotune.commands.verify import run
from autotune.commands.verify.run import verify
from autotune.core import AutotuneError, Environment, InvalidRequest, Outcome, Trial, Workload, read_json, write_json
from autotune.core.errors import NothingFits, StudyInUse
from autotune.core.request import tuning_request
from tests.commands.verify.test_result import plain
from tests.hurry import RECORDED_HOST
from tests.makers import ALLOWED, MIB, configuration, cpu, gpu, out_of_memory, result, trial, workload
from tests.probe.processes import becomes_true, started_in


@pytest.fixture(scope="module")
def study(
    environment: Environment, workload_of: Callable[..., Workload], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A study of a real model on this machine, named `small`, in a folder `reports`; its speeds are made up."""
    made = result(
        [trial(0, 40.0, 300 * MIB, configuration(2, 4), confirmed=40.0)],
        request=tuning_request("bert-mini", 4, device="cpu", sequence_length=16),
        workload=workload_of("bert-mini", sequence_length=16),
        environment=environment,
    )
    return made.save(tmp_path_factory.mktemp("verify") / "reports" / "small")


@pytest.fixture
def copied(study: Path, tmp_path: Path) -> Path:
    """The study as its search left it, free to be changed."""
    left_out = shutil.ignore_patterns("verification*")
    return Path(shutil.copytree(study, tmp_path / "reports" / "small", ignore=left_out))


@pytest.fixture
def known_machine(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was read already: each reading takes a host of its own."""
    monkeypatch.setattr(run, "read_device", lambda device: environment)


@pytest.fixture
def recorded(known_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings are answered by a recorded host."""
    monkeypatch.setattr(run, "ProbeHost", RECORDED_HOST)


def command(folder: Path, *words: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `autotune verify` beside the folder `reports` of the study."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, ["verify", *words])
    finally:
        os.chdir(before)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


# A real study ---------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.nightly
def test_what_a_search_promised_is_held_against_a_plain_training(tmp_path: Path) -> None:
    autotune.search(
        "bert-mini",
        4,
        sequence_length=16,
        device="cpu",
        n_trials=1,
        space="quick",
        output_dir=str(tmp_path / "reports"),
        study_name="searched",
    )
    code, out, err = command(tmp_path, "searched", "--steps", "5")
    assert (code, err) == (0, "")
    assert "than promised, " in out
    assert "note: " not in out, "the same machine, confirmed, all batches alike"


def test_the_answer_of_a_study_is_trained_for_as_many_steps_as_requested(study: Path, known_machine: None) -> None:
    lines: list[str] = []
    verification = verify(study, steps=5, watch=lines.append)
    got = verification.got
    assert verification.promised == TuningResult.load(study).best
    assert got.outcome is Outcome.COMPLETED
    assert (len(got.steps), got.untimed_steps) == (5, 1)
    assert {step.samples for step in got.steps} == {4}
    assert got.peak_bytes is not None
    assert 0 < got.peak_bytes <= ALLOWED
    assert got.allowed_bytes == ALLOWED
    assert verification.difference is not None
    assert len(lines) == 1, "shown once, before it starts"
    data = read_json(study / "verification.json")
    assert data == verification.to_dict() | {"step_times_s": [step.seconds for step in got.steps]}
    assert {path.name for path in (study / "probes" / "verification").iterdir()} == {"order.json", "log.txt"}
    assert str(study.parent) not in (study / "probes" / "verification" / "order.json").read_text()
    order = read_json(study / "probes" / "verification" / "order.json")
    assert order["training_arguments"] == read_json(study / "best_training_arguments.json")
    assert len(TuningResult.load(study).trials) == 1, "the study itself is as it was"


def test_the_command_prints_a_table_in_eighty_columns_or_one_json_object(study: Path, recorded: None) -> None:
    code, out, err = command(study.parent.parent, "small", "--steps", "5")
    assert (code, err) == (0, "")
    assert "Training the answer for 5 step(s)" in out
    assert "eld: " in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, err = command(study.parent.parent, "reports/small", "--steps", "1", "--json")
    assert code == 0
    assert json.loads(out)["timed_steps"] == 1
    assert err.startswith("Training the answer")


@pytest.mark.nightly
def test_an_answer_that_does_not_fit_any_more_is_said_plainly_beside_its_promise(
    copied: Path, known_machine: None
) -> None:
    record = read_json(copied / "request.json")
    write_json(copied / "request.json", record | {"allowed_bytes": 10 * MIB})
    code, out, err = command(copied.parent.parent, "small", "--steps", "5")
    assert (code, err) == (1, "")
    assert "Not held: out of memory: " in out
    assert "Traceback" not in out
    row = next(line.split() for line in out.splitlines() if line.startswith("peak memory"))
    assert row[2].isdigit()
    assert row[-2:] == ["-", "-"]
    assert read_json(copied / "verification.json")["held"] is False


def test_other_versions_are_a_note_and_no_error(copied: Path, recorded: None) -> None:
    known = read_json(copied / "environment.json")
    write_json(copied / "environment.json", known | {"versions": known["versions"] | {"torch": "2.0.0"}, "threads": 99})
    verification = verify(copied, steps=1)
    assert verification.got.outcome is Outcome.COMPLETED
    assert len(verification.notes) == 1
    assert "threads 99, here " in verification.notes[0]
    assert f"torch 2.0.0, here {known['versions']['torch']}" in verification.notes[0]


@pytest.mark.nightly
def test_an_interrupt_exits_with_130_and_leaves_nothing_running(copied: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "verify", "small", "--steps", "100000"],
        cwd=copied.parent.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "AUTOTUNE_TEST": str(copied)},
    )
    log = copied / "probes" / "verification" / "log.txt"
    assert becomes_true(lambda: log.exists() or process.poll() is not None, 120)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Interrupted. The study is kept as it was; run the same command again" in err
    assert not (copied / "verification.json").exists()
    assert not started_in(copied)


# What cannot be verified ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [{"steps": 100_001}, {"steps": True}, {"seconds": 0}, {"seconds": float("nan")}])
def test_a_length_that_is_none_is_refused(length: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="must be "):
        verify(result().save(tmp_path), **length)


REFUSED: dict[str, tuple[dict[str, Any], type[AutotuneError], str]] = {
    "no answer": (
        {"trials": [Trial(0, configuration(), out_of_memory(configuration()))]},
        NothingFits,
        "Nothing fits into",
    ),
    "the caller's own model": ({"workload": workload(user_objects=True)}, InvalidRequest, "the caller's own code"),
    "data that is gone": ({"workload": workload(data="gone")}, InvalidRequest, "Run the same search command again"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_study_alone_cannot_train_is_refused_with_advice(what: str, tmp_path: Path) -> None:
    facts, kind, said = REFUSED[what]
    folder = result(**facts).save(tmp_path / "reports" / "small")
    with pytest.raises(kind) as caught:
        verify(folder)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    code, out, err = command(tmp_path, "small")
    assert (code, out) == (kind.exit_code, "")
    assert len(err.strip().splitlines()) == 1
    assert not (folder / "verification.json").exists()


def test_a_study_that_is_being_searched_is_refused(tmp_path: Path) -> None:
    folder = result().save(tmp_path)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StudyInUse, match="Another process works on the study"):
            verify(folder)


def test_a_study_of_a_card_is_refused_where_there_is_none(tmp_path: Path) -> None:
    from autotune.probe.device.nvml import visible_cards

    if visible_cards():
        pytest.skip("this machine has a GPU")
    folder = result(environment=gpu()).save(tmp_path)
    with pytest.raises(InvalidRequest, match=r"measured on a plain card\. There is no device cuda:0") as caught:
        verify(folder)
    assert caught.value.advice == "Verify it on such a machine."


def test_a_host_that_cannot_write_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = result().save(tmp_path)
    monkeypatch.setattr(run, "read_device", lambda device: cpu())
    monkeypatch.setattr(run, "_trained", lambda *_: plain(40.0))
    monkeypatch.setattr(run, "write_json", refuse)
    with pytest.raises(AutotuneError, match="cannot be written: No space left"):
        verify(folder)


def refuse(path: Path, data: Any) -> None:
    raise OSError(28, "No space left on device")


def test_what_weakens_the_comparison_is_noted() -> None:
    unconfirmed = trial(1, 40.0, worst_batch="8 x sample 3, the longest of the data")
    notes = run._notes(result([trial(0, 10.0), unconfirmed]), cpu())
    assert any("not confirmed" in note for note in notes)
    assert any("largest batch" in note for note in notes)
    assert run._notes(result(), cpu()) == ()
