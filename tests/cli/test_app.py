"""The command line as people meet it: help, exit codes, one clear line for what cannot be done."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands.result import TuningResult
from autotune.core.request import tuning_request
from tests import makers
from tests.hurry import hurry


def run(arguments: list[str], folder: Path):
    """(exit code, standard output, standard error) of a command run in that folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        os.chdir(before)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_json_is_one_object_on_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch, recorded=True)
    words = ["--global-batch-size", "16", "--device", "cpu", "--n-trials", "2", "--no-history", "--study-name", "first"]
    code, out, _ = run(["search", "bert-mini", *words, "--json"], tmp_path)
    assert code == 0
    answer = json.loads(out)
    assert answer["best"]["micro_batch_size"] * answer["best"]["gradient_accumulation_steps"] == 16
    assert answer["training_arguments"]["use_cpu"] is True
    assert answer["folder"] == "reports/first"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A folder with a study of three trials, `reports/first`."""
    makers.result(request=tuning_request("gpt2-mini", 48, device="cpu", study_name="first")).save(
        tmp_path / "reports" / "first"
    )
    return tmp_path


def test_studies_and_report_tell_of_a_study(reports: Path) -> None:
    code, out, _ = run(["studies"], reports)
    assert code == 0
    head, row = out.splitlines()
    assert head.split() == ["study", "samples/s", "speed-up", "peak", "trials", "when"]
    assert row.split()[:8] == ["first", "40.0", "±", "1.3", "4.00x", "500", "MiB", "3"]
    code, out, _ = run(["report", "first"], reports)
    assert code == 0
    assert "## What to paste" in out
    assert out.strip() == (reports / "reports" / "first" / "summary.md").read_text().strip()
    code, _, err = run(["report", "nowhere"], reports)
    assert code == 2
    assert "There is no study in reports/nowhere" in err


def test_studies_survive_any_one_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers.result().save(tmp_path / "reports" / "good")
    makers.result().save(tmp_path / "reports" / "odd")
    os.mkfifo(makers.result().save(tmp_path / "reports" / "fifo") / "explanation.json")
    (tmp_path / "reports" / "fifo" / "request.json").unlink()
    os.mkfifo(tmp_path / "reports" / "fifo" / "request.json")
    load = TuningResult.load
    monkeypatch.setattr(TuningResult, "load", lambda folder: 1 // 0 if folder.name == "odd" else load(folder))
    code, out, _ = run(["studies"], tmp_path)
    lines = out.splitlines()
    assert (code, [line.split()[0] for line in lines[:3]]) == (0, ["study", "good", "fifo:"])
    assert "it is not a regular file" in out
    assert "odd: reports/odd cannot be read: ZeroDivisionError" in out


def test_a_name_that_no_file_can_have_is_one_line(tmp_path: Path) -> None:
    for words in (["studies"], ["report", "first"], ["compare", "first"]):
        code, _, err = run([*words, "--output-dir", "y" * 300], tmp_path)
        assert (code, err.count("\n")) == (1, 1)
        assert "File name too long" in err


def test_studies_show_no_speed_up_that_was_not_measured(tmp_path: Path) -> None:
    """`about` as in the headline, and words where the user's settings are kept."""
    slow, fast = makers.trial(0, 10.0, confirmed=10.0), makers.configuration(16)
    makers.result([slow, makers.trial(1, 5.0, of=fast, confirmed=5.0)]).save(tmp_path / "reports" / "kept")
    makers.result([makers.trial(0, 10.0), makers.trial(1, 20.0, of=fast)], complete=False).save(
        tmp_path / "reports" / "rough"
    )
    one_step = makers.trial(0, steps=makers.trial(0).measurement.steps[:1])
    makers.result([one_step]).save(tmp_path / "reports" / "vague")
    rows = {line.split()[0]: line for line in run(["studies"], tmp_path)[1].splitlines()}
    assert "none found" in rows["kept"]
    assert "about 2.0x" in rows["rough"]
    assert "about 9.9 " in rows["vague"]
    assert "1.00x" not in "".join(rows.values())


def test_of_studies_of_one_day_the_latest_is_first_too(tmp_path: Path) -> None:
    for hour, name in enumerate(("b", "a", "c")):
        folder = makers.result(date="2001-09-09").save(tmp_path / "reports" / name)
        for path in folder.glob("probes/*/*"):
            os.utime(path, (1e9 - 3600 * hour, 1e9 - 3600 * hour))
    assert [line.split()[0] for line in run(["studies"], tmp_path)[1].splitlines()] == ["study", "b", "a", "c"]


def test_an_old_study_is_told_to_a_logger_afterwards_and_only_once(tmp_path: Path) -> None:
    made = makers.result()
    made.save(tmp_path / "reports" / "old")
    for _ in range(2):
        code, out, _ = run(["report", "old", "--report-to", "tensorboard"], tmp_path)
        assert code == 0
        assert out == (tmp_path / "reports" / "old" / "summary.md").read_text() + "\n"
    assert len(list((tmp_path / "reports" / "old" / "tensorboard").glob("trial-*/events*"))) == 3
