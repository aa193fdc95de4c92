"""A study that commands read."""

from pathlib import Path

import pytest

from tests.makers import result


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study; to be copied, not changed."""
    return result().save(tmp_path_factory.mktemp("saved") / "study")
