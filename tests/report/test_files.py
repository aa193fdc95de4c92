"""The files of a report folder: whole, complete, and readable by others."""

import json
from pathlib import Path

import pytest

from autotune.core.errors import StorageFailed
from autotune.core.request import tuning_request
from autotune.core.trial import Trial
from autotune.report import FILES
from autotune.report.exports import EXPORTS
from tests.makers import configuration, out_of_memory, result, trial, workload


def test_a_saved_result_is_a_whole_folder(tmp_path: Path) -> None:
    folder = result().save(tmp_path / "a" / "study")
    when_made = {"verification.json", "ds_config.json", "explanation.json", "realized.json"}
    assert {path.name for path in folder.iterdir()} == {"request.json", "probes", *FILES} - when_made
    assert {str(path.relative_to(folder / "probes")) for path in (folder / "probes").rglob("*.json")} == {
        f"{place}/{name}"
        for place in (
            *("0000", "0000/confirmation-1", "0000/confirmation-2"),
            *("0001", "0001/confirmation-1", "0001/confirmation-2", "0002"),
        )
        for name in ("order.json", "measurement.json")
    }


def test_a_report_can_be_written_again_and_its_json_is_plain(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    study = result()
    before = {path: path.read_bytes() for path in study.save(tmp_path).rglob("*.json")}
    for content in before.values():
        json.loads(content, parse_constant=refuse)
    study.save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()], "nothing half written is left"


def test_an_answer_and_a_picture_that_are_none_any_more_are_removed(tmp_path: Path) -> None:
    names = ("best_training_arguments.json", "best_model_arguments.json", "speed_against_memory.svg")
    result().save(tmp_path)
    assert all((tmp_path / name).exists() for name in names)
    result([Trial(0, configuration(), out_of_memory(configuration()))]).save(tmp_path)
    assert not [name for name in (*names, *EXPORTS) if (tmp_path / name).exists()]


def test_the_users_own_settings_are_no_answer_in_the_folder(tmp_path: Path) -> None:
    """A search that goes on and finds something or nothing leaves the files of its own outcome alone."""
    found, kept = result(), result([trial(0, 10.0, confirmed=10.0), trial(1, 5.0, of=configuration(16), confirmed=5.0)])
    for study in (kept, found, kept):
        study.save(tmp_path)
        there = {name for name in (*FILES, *EXPORTS) if (tmp_path / name).exists()}
        answers = {name for name in there if name.startswith("best_") or name in EXPORTS}
        assert bool(answers) is study.changes_settings
        assert ("What to paste" in (tmp_path / "summary.md").read_text()) is study.changes_settings
        assert ('id="paste"' in (tmp_path / "report.html").read_text()) is study.changes_settings
        ended = json.loads((tmp_path / "result.json").read_text())
        assert ended["state"] == ("improved" if study is found else "kept")
        assert (ended["best"], ended["speedup"] == 1.0) == ((1, False) if study is found else (0, True))


def test_deepspeed_s_file_lies_there_with_exact_numbers_where_the_answer_uses_it(tmp_path: Path) -> None:
    config = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "zero_optimization": {"stage": 2}}
    request = tuning_request("gpt2-mini", 48, device="cpu", args={"deepspeed": config})
    written = json.loads((result(request=request).save(tmp_path) / "ds_config.json").read_text())
    assert (written["train_micro_batch_size_per_gpu"], written["train_batch_size"]) == (16, 48)
    result().save(tmp_path)
    assert not (tmp_path / "ds_config.json").exists()


def test_files_for_other_tools_name_no_place_of_this_machine(tmp_path: Path) -> None:
    about = workload(source=str(tmp_path), data=str(tmp_path / "tokens"))
    folder = result(workload=about, request=tuning_request(str(tmp_path), 48)).save(tmp_path / "study")
    assert all(str(tmp_path) not in (folder / name).read_text() for name in EXPORTS if name != "ds_config.json")


def test_a_folder_that_cannot_be_written_is_said_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "study", Path("/proc/study")):
        with pytest.raises(StorageFailed) as caught:
            result().save(folder)
        assert "\n" not in str(caught.value)
        assert caught.value.advice
