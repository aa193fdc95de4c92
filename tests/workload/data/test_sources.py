"""Local data, looked at without reading them."""

import os
from pathlib import Path

import pytest

from autotune.core.errors import InvalidRequest
from autotune.workload.data import sources
from autotune.workload.data.sources import check_data, stamp


def test_a_folder_is_looked_at_until_the_first_file_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="holds no data"):
        check_data(str(tmp_path))
    for name in ("a.png", "deep/er/b.png"):
        (tmp_path / name).write_bytes(b"")
    looked: list[Path] = []
    whole = sources._files_below
    monkeypatch.setattr(sources, "_files_below", lambda folder: (looked.append(item) or item for item in whole(folder)))
    check_data(str(tmp_path))
    assert [path.name for path in looked] == ["a.png"]


def test_small_data_is_identified_by_its_contents_and_large_by_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data.txt"
    file.write_text("some lines\n")
    before = stamp([file])
    assert before.startswith("data.txt, 11 bytes, ")
    os.utime(file, (1, 1))
    assert stamp([file]) == before
    file.write_text("SOME LINES\n")
    assert stamp([file]) != before
    monkeypatch.setattr(sources, "MOST_HASHED_BYTES", 5)
    large = stamp([file])
    os.utime(file, (1, 1))
    assert stamp([file]) != large
