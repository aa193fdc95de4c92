"""Reading the user's data in the user's program."""

from pathlib import Path

import pytest

from autotune.commands.run.program import read_aside
from autotune.core.errors import InvalidRequest
from autotune.probe.process.guard import why_unguarded


@pytest.mark.skipif(bool(why_unguarded()), reason="no mount namespaces here")
def test_the_data_is_read_in_a_fork_that_writes_nothing_of_the_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    def cached() -> list[str]:
        Path("cache").write_text("a sample")
        return [Path("cache").read_text()]

    assert read_aside(cached) == ["a sample"]
    assert not any(Path.cwd().iterdir())


def test_what_reading_raises_is_raised_here() -> None:
    def refused() -> None:
        raise InvalidRequest("The train_dataset has 2 samples.")

    with pytest.raises(InvalidRequest, match="2 samples"):
        read_aside(refused)
