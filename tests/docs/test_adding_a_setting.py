"""Adding a setting as the page says: the files are written, their tests pass, and a search searches it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.docs.pages import ROOT
from tests.hurry import hurried
from tests.test_documents import blocks_of

BLOCKS = [block for block in blocks_of("docs/adding_a_setting.md") if block.caption]


def inserted(text: str, diff: str) -> str:
    """The text with every `+` line below the line that stands before it in the diff, which must be there once."""
    lines = text.splitlines()
    above = ""
    for line in diff.splitlines():
        if line.startswith("+"):
            assert lines.count(above) == 1, above
            lines.insert(lines.index(above) + 1, line[1:])
        above = line[1:]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and of what the page's tests need, with the page's files in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name, others in (("autotune", ()), ("search_spaces", ()), ("tests", ("data", "gpu"))):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", *others))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for block in BLOCKS:
        path = folder / block.caption
        path.write_text(inserted(path.read_text(), block.text) if block.language == "diff" else block.text)
    return folder


def run(folder: Path, *words: str, recorded: bool = False) -> subprocess.CompletedProcess[str]:
    environment, command = hurried(folder, recorded), [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def test_the_page_shows_a_setting_its_place_and_its_test() -> None:
    assert [block.language for block in BLOCKS] == ["python", "diff", "python"]


def test_its_tests_pass_beside_those_of_every_setting(checkout: Path) -> None:
    tests = ("tests/space/settings/test_settings.py", "tests/space/settings/test_determinism.py")
    done = run(checkout, "pytest", "-q", "-k", "determinism or every_file_is_a_setting or needs_none", *tests)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("recorded", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_search_searches_it(recorded: bool, checkout: Path) -> None:
    words = "search bert-mini -b 2 --sequence-length 16 --device cpu --search-space quick --fresh --study-name own"
    only = "--fix checkpointing=none --fix precision=fp32 --fix micro_batch_size=2 --only determinism=false,true"
    done = run(checkout, "autotune", *words.split(), *only.split(), recorded=recorded)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(checkout / "reports/own/trials.csv")
    assert set(table["determinism"]) == {False, True}
    assert set(table["outcome"]) == {"completed"}
