"""The files of a study, whoever else has been at its folder."""

import shutil
from pathlib import Path

import pytest

from autotune.commands.result import TuningResult
from autotune.core import InvalidRequest
from autotune.core.errors import StorageFailed, UnreadableFile
from autotune.study.store import folder_number, locked
from tests.makers import result


@pytest.mark.parametrize("text", ["0007", "7", "000007"])
def test_a_folder_of_digits_has_a_number(text: str) -> None:
    assert folder_number(text) == 7


@pytest.mark.parametrize("text", ["", "0²", "٢", "-1", "1_0", " 1", "0001 (copy)", "1" * 5000])
def test_other_names_have_none(text: str) -> None:
    assert folder_number(text) is None


@pytest.mark.parametrize("name", ["0²", "0001 (copy)"])
def test_a_measurement_in_a_folder_without_a_number_is_left_out_with_a_warning(name: str, tmp_path: Path) -> None:
    folder = result().save(tmp_path / "study")
    shutil.move(folder / "probes" / "0001", folder / "probes" / name)
    with pytest.warns(UnreadableFile, match="no trial's number"):
        loaded = TuningResult.load(folder)
    assert [trial.number for trial in loaded.trials] == [0, 2]


def test_a_folder_that_cannot_be_one_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    for place, why in (("link", "a link to nothing"), ("file", "is a file"), ("file/below", "is a file")):
        with pytest.raises(InvalidRequest, match=why), locked(tmp_path / place):
            pass
    with pytest.raises(StorageFailed, match="File name too long"), locked(tmp_path / ("y" * 300)):
        pass
