"""What is handed on names no place of the machine and holds no token."""

from pathlib import Path

import pytest

from autotune.core.paths import named, scrubbed, shown, study_word


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("FileNotFoundError: '/home/ann/data/rows.csv'", "FileNotFoundError: '…/rows.csv'"),
        ("FileNotFoundError: '/mnt/x/team drive/ann/rows of may.csv'", "FileNotFoundError: '…/rows of may.csv'"),
        ("in /opt/venv/lib/python3.11/site-packages/torch/nn/linear.py", "in torch/nn/linear.py"),
        ("401 for sk-abcdefghijklmnopqrst", "401 for (a token)"),
        ("12 samples/s at https://example.org/a/b/c", "12 samples/s at https://example.org/a/b/c"),
    ],
)
def test_of_paths_the_last_part_is_left_and_tokens_are_masked(written: str, left: str) -> None:
    assert scrubbed(written) == left
    assert scrubbed(left) == left


def test_folders_with_a_space_in_their_names_are_left_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/Ann Lee")
    monkeypatch.setattr("tempfile.tempdir", "/a disk/temporary files")
    (tmp_path / "my project").mkdir()
    monkeypatch.chdir(tmp_path / "my project")
    for folder in ("/home/Ann Lee", "/a disk/temporary files", f"{tmp_path}/my project"):
        assert scrubbed(f"in {folder}/train.py, line 3") == "in …/train.py, line 3"


@pytest.mark.parametrize(
    ("place", "name"),
    [("/home/ann/models/mine", "mine"), ("org/model", "org/model"), ("models/mine", "models/mine"), ("", "")],
)
def test_only_an_absolute_path_is_cut_to_its_name(place: str, name: str) -> None:
    assert named(place) == name


def test_a_folder_below_the_current_one_is_shown_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "reports" / "first") == shown(Path("reports/first")) == "reports/first"
    assert shown(tmp_path.parent) == str(tmp_path.parent)
    assert shown(None) == "."


@pytest.mark.parametrize(
    ("folder", "word"),
    [
        ("reports/first", "first"),
        ("first", "first"),
        ("elsewhere/first", "elsewhere/first"),
        ("reports/team/first", "reports/team/first"),
        ("a b/first", "'a b/first'"),
    ],
)
def test_commands_take_a_study_in_reports_by_its_name_and_any_other_by_its_folder(
    folder: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert study_word(Path(folder)) == study_word(tmp_path / folder) == word
