"""README and docs are true: their commands and their Python run, their links lead somewhere.

A `console` block is run, and a `python` block runs to its last assert; a block with a caption is a file of that name, written
first. What searches is answered by a recorded host, and with real probes in `make test-all`; the README's first command, and
what a recording cannot answer, runs for real always. Of an `sh` block, which takes more time or hardware than a test has, every
`autotune` command must be one that could be given.
"""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from autotune.cli.app import app
from autotune.space.file import core_settings, read_space
from autotune.space.user_arguments import read_training_args
from tests.docs.pages import DOCS, PAGES, ROOT, anchors
from tests.hurry import hurried

FENCE = re.compile(r"^```(?:\{code-block\} )?(\w+)\n((?::[\w-]+:[^\n]*\n)*)\n?(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block of a page; caption: the file that it is, or empty."""

    page: str
    language: str
    caption: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its `autotune` commands, without the prompt."""
        lines = (line.removeprefix("$ ") for line in self.text.replace("\\\n", "").splitlines())
        return [line for line in lines if line.startswith("autotune ")]


def blocks_of(page: str) -> list[Block]:
    found = FENCE.findall(PAGES[page])
    captions = [re.findall(r":caption: (\S+)", options) for _, options, _ in found]
    return [Block(page, one[0], next(iter(said), ""), one[2]) for one, said in zip(found, captions, strict=True)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [(one.page, command) for one in BLOCKS if one.language == "console" for command in one.commands]
SHOWN = [(one.page, command) for one in BLOCKS if one.language == "sh" for command in one.commands]
PYTHON = [(one.page, one.text) for one in BLOCKS if one.language == "python" and not one.caption]


REAL_ONLY = ("autotune estimate", "docs/own_data.md", "autotune.estimate(")
"""Traces of any model, and the caller's own: no recording answers for them."""


def both_ways(blocks: list[tuple[str, str]]) -> list[Any]:
    """Each block by a recorded host, and for real: at night only, but for the first and what no recording answers."""
    cases = []
    for number, (page, text) in enumerate(blocks):
        always_real = number == 0 or any(words in text or words == page for words in REAL_ONLY)
        cases += [] if always_real else [pytest.param(page, text, True)]
        cases.append(pytest.param(page, text, False, marks=() if always_real else pytest.mark.nightly))
    return cases


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Path]]:
    """Whether by a recorded host -> for each page a folder with the files that it shows."""
    return {recorded: folders_of_pages(tmp_path_factory) for recorded in (True, False)}


def folders_of_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each page a folder with the files that it shows; the README's is a checkout as far as its paths go."""
    folders = {page: tmp_path_factory.mktemp(Path(page).stem) for page in PAGES}
    for block in BLOCKS:
        if block.caption and "/" not in block.caption:
            (folders[block.page] / block.caption).write_text(block.text, encoding="utf-8")
    shipped = "reports/gpt2-mini-causal-lm-gb48-cpu"
    shutil.copytree(ROOT / shipped, folders["docs/columns.md"] / shipped)
    readme = folders["README.md"]
    (readme / "tests").symlink_to(ROOT / "tests")
    data = [sys.executable, str(ROOT / "tests" / "data" / "python_topics.py"), str(readme / "reports/data/topics.txt")]
    subprocess.run(data, check=True)
    return folders


def run(command: list[str], folder: Path, recorded: bool, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = hurried(recorded=recorded)
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=600, env=environment)


@pytest.mark.parametrize(("page", "command", "recorded"), both_ways(COMMANDS))
def test_every_command_runs(page: str, command: str, recorded: bool, folders: dict[bool, dict[str, Path]]) -> None:
    # Fewer trials, shorter samples and a shorter end than a reader would take: all else is as it stands there.
    words = shlex.split(re.sub(r"--n-trials \d+", "--n-trials 1", command))
    if words[1] == "guide":
        words += ["--sequence-length", "8"]
    done = run([sys.executable, "-m", *words], folders[recorded][page], recorded)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("page", "code", "recorded"), both_ways(PYTHON))
def test_every_python_block_runs_to_its_last_assert(
    page: str, code: str, recorded: bool, folders: dict[bool, dict[str, Path]]
) -> None:
    assert "assert" in code.strip().splitlines()[-1]
    text = re.sub(r"n_trials=\d+", "n_trials=1", code)
    done = run([sys.executable, "-"], folders[recorded][page], recorded, text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_every_command_that_is_only_shown_could_be_given(page: str, command: str) -> None:
    _, name, *words = shlex.split(command)
    program = typer.main.get_command(app)
    if name.startswith("-"):
        assert name in [spelt for one in program.params for spelt in one.opts]
    else:
        program.commands[name].make_context(name, words)  # type: ignore[attr-defined]


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.caption.endswith(".yaml")], ids=lambda one: one.caption)
def test_every_yaml_file_that_is_shown_can_be_read(block: Block, tmp_path: Path) -> None:
    path = tmp_path / block.caption
    path.write_text(block.text, encoding="utf-8")
    if "parameters:" in block.text:
        assert read_space(str(path))
        assert set(core_settings(str(path))) <= set(read_space(str(path)))
    else:
        assert read_training_args(path)


def test_there_is_something_to_run() -> None:
    of_readme = [command for page, command in COMMANDS if page == "README.md"]
    assert len(of_readme) >= 4
    assert {"README.md", "docs/first_search.md", "docs/own_data.md"} <= {page for page, _ in PYTHON}
    assert len({page for page, _ in COMMANDS}) > 4
    assert SHOWN


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_checkout_that_is_named_is_there(page: str) -> None:
    made = {block.caption for block in BLOCKS if block.page == page}
    for path in re.findall(r"`((?:autotune|examples|search_spaces|tests|docs)/[\w/.]*)`", PAGES[page]):
        assert path in made or (ROOT / path).exists(), path


def test_every_page_stands_in_the_index() -> None:
    named = re.findall(r"^(\w+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"docs/{name}.md" for name in named} | {"docs/index.md", "README.md"} == set(PAGES)
