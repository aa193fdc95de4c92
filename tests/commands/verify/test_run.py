"""Promised against measured: a real study verified, and what is said where that cannot be or does not hold."""

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands.result import TuningResult
from autotune.commands.verify import run
from autotune.commands.verify.run import verify
from autotune.core import AutotuneError, Environment, InvalidRequest, Outcome, Trial, Workload, read_json, write_json
from autotune.core.errors import NothingFits, StudyInUse
from autotune.core.interrupt import Terminated
from autotune.core.note import Note, NoteKind
from autotune.core.promise_verdict import PromiseKind
from autotune.core.request import tuning_request
from autotune.probe.process.launcher import ProbeHost
from tests.hurry import RECORDED_HOST
from tests.makers import ALLOWED, MIB, configuration, cpu, gpu, out_of_memory, result, trial, workload


@pytest.fixture(scope="module")
def study(
    environment: Environment, workload_of: Callable[..., Workload], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A study of a real model on this machine, named `small`, in a folder `reports`; its speeds are made up."""
    made = result(
        [
            trial(0, 40.0, 300 * MIB, configuration(2, 4), confirmed=40.0),
            trial(1, 60.0, 300 * MIB, configuration(4, 4), confirmed=60.0),
        ],
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
    """The machine was read already."""
    monkeypatch.setattr(run, "read_environment", lambda *_: (environment, None))


@pytest.fixture
def recorded(known_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings are answered by a recorded host."""
    monkeypatch.setattr(run, "HostSet", RECORDED_HOST)


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


def test_both_sides_are_trained_in_turns(
    study: Path, known_machine: None, host: ProbeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "HostSet", lambda: nullcontext(host))
    monkeypatch.setattr(run, "ROUNDS", 2)
    lines: list[str] = []
    verification = verify(study, seconds=0.01, watch=lines.append)
    for side in (verification.yours, verification.answer):
        assert all(len(measured.steps) >= 1 for measured in side)
        assert [measured.round for measured in side] == [1, 2]
        for measured in side:
            assert measured.outcome is Outcome.COMPLETED
            assert measured.untimed_steps == 4
            assert {step.samples for step in measured.steps} == {4}
            assert measured.peak_bytes is not None
            assert 0 < measured.peak_bytes <= ALLOWED
            assert measured.allowed_bytes == ALLOWED
    assert verification.measured is not None
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "round 1 of 2, yours",
        "round 1 of 2, answer",
        "round 2 of 2, answer",
        "round 2 of 2, yours",
    ]
    assert read_json(study / "verification.json") == verification.to_dict()
    place = study / "probes" / "verification"
    assert {path.name for path in place.iterdir()} == {"1-yours", "1-answer", "2-yours", "2-answer"}
    assert {path.name for path in (place / "1-answer").iterdir()} == {"order.json", "log.txt"}
    assert str(study.parent) not in (place / "1-answer" / "order.json").read_text()
    orders = {name: read_json(place / name / "order.json") for name in ("1-yours", "1-answer", "2-answer")}
    assert orders["1-answer"]["training_arguments"] == read_json(study / "best_training_arguments.json")
    assert orders["1-yours"]["configuration"] == TuningResult.load(study).baseline.configuration.to_dict()
    assert orders["1-yours"]["request"] == orders["1-answer"]["request"] != orders["2-answer"]["request"]
    assert len(TuningResult.load(study).trials) == 2, "the study itself is as it was"


def test_the_command_prints_a_table_in_eighty_columns_or_one_json_object(study: Path, recorded: None) -> None:
    code, out, err = command(study.parent.parent, "small", "--seconds", "0.01")
    assert (code, err) == (0, "")
    assert "Training the Trainer's defaults and the answer in turns, 6 times; of each" in out
    assert "eld: " in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, err = command(study.parent.parent, "reports/small", "--seconds", "0.01", "--json")
    assert code == 0
    assert [len(rounds) for rounds in json.loads(out)["rounds"].values()] == [6, 6]
    assert err.startswith("Training the Trainer's defaults")


@pytest.mark.parametrize(
    ("length", "rounds", "timing"),
    [
        ({}, 6, (1, 5.0)),
        ({"seconds": 12.0}, 6, (1, 2.0)),
        ({"seconds": 150.0}, 15, (1, 10.0)),
        ({"seconds": 1000.0}, 20, (1, 50.0)),
        ({"seconds": 0.06}, 6, (1, 0.01)),
    ],
)
def test_a_longer_verification_takes_more_rounds(
    study: Path, recorded: None, length: dict[str, Any], rounds: int, timing: tuple[int, float]
) -> None:
    verification = verify(study, watch=False, **length)
    assert len(verification.yours) == len(verification.answer) == rounds
    order = read_json(study / "probes" / "verification" / "1-yours" / "order.json")["timing"]
    assert (order["timed_least"], order["seconds"]) == timing


def test_other_versions_are_a_note_and_no_error(copied: Path, recorded: None) -> None:
    known = read_json(copied / "environment.json")
    write_json(copied / "environment.json", known | {"versions": known["versions"] | {"torch": "2.0.0"}, "threads": 99})
    verification = verify(copied, seconds=0.01)
    assert verification.held is not False
    assert len(verification.notes) == 1
    assert "threads 99, here " in verification.notes[0].text
    assert f"torch 2.0.0, here {known['versions']['torch']}" in verification.notes[0].text


def test_settings_that_do_not_fit_are_replaced_by_the_least_change_that_does(
    recorded: None, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    own, less, fastest = configuration(8, 8), configuration(2, 8), configuration(2, 8, precision="bf16")
    folder = result(
        [
            Trial(0, own, out_of_memory(own)),
            trial(1, 40.0, 300 * MIB, less, confirmed=40.0),
            trial(2, 60.0, 300 * MIB, fastest, confirmed=60.0),
        ],
        request=tuning_request("bert-mini", 8, device="cpu", sequence_length=16),
        workload=workload_of("bert-mini", sequence_length=16),
        environment=environment,
    ).save(tmp_path / "small")
    lines: list[str] = []
    verification = verify(folder, seconds=0.01, watch=lines.append)
    assert verification.baseline is not None
    assert verification.baseline.configuration == less
    assert len(verification.yours) == len(verification.answer) > 0
    assert [note.kind for note in verification.notes] == [NoteKind.SUBSTITUTE]
    assert "compared with micro-batch 2" in verification.notes[0].text
    assert lines[0].startswith("Training the least change of the Trainer's defaults that fits and the answer in")


@pytest.mark.parametrize(
    ("before", "complete", "kept"), [(False, 0, None), (False, 1, 1), (True, 2, "former"), (True, 3, 3)]
)
def test_what_was_measured_before_an_interrupt_is_kept_unless_an_earlier_verification_tells_more(
    before: bool, complete: int, kept: Any, copied: Path, recorded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied / "verification.json"
    if before:
        write_json(path, {"verdict": "former"})
    trained = run._Turns._trained

    def until(turns: run._Turns, side: str, number: int) -> Any:
        if number > complete and len(turns.measured["yours"]) + len(turns.measured["answer"]) > 2 * complete:
            raise Terminated(signal.SIGTERM)  # in the middle of a round
        return trained(turns, side, number)

    monkeypatch.setattr(run._Turns, "_trained", until)
    with pytest.raises(Terminated):
        verify(copied, seconds=6.0, watch=False)
    if kept is None:
        assert not path.exists()
    elif kept == "former":
        assert read_json(path) == {"verdict": "former"}
    else:
        data = read_json(path)
        assert min(len(rounds) for rounds in data["rounds"].values()) == kept
        assert f"ended after {kept} of 6 rounds" in [note["text"] for note in data["notes"]]
        assert data["measured"]["speedup"] > 0
        if kept < 3:
            verdict = data["verdict"]
            assert (verdict["kind"], verdict["numbers"]["rounds"]) == (PromiseKind.FEW_ROUNDS, kept)


# What cannot be verified ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [{"seconds": 0}, {"seconds": float("nan")}])
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


def test_what_weakens_the_comparison_is_noted() -> None:
    unconfirmed = trial(1, 40.0, worst_batch="8 x sample 3, the longest of the data")
    notes = run._notes(result([trial(0, 10.0), unconfirmed], complete=False), cpu())
    assert Note(NoteKind.NOT_PROVEN) in notes
    assert Note(NoteKind.LARGEST_BATCH) in notes
    assert run._notes(result(), cpu()) == ()
