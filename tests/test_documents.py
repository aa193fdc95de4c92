"""README, docs and examples are true: their commands and Python run, their links lead somewhere.

A `console` or `bash` block is run, and a `python` block runs to its last assert; a block with a caption is a file of that
name, written first. A recorded host answers searches; README's first command runs with real probes, everything does in
`make test-all`. Of an `sh` block, which takes more time or hardware than a test has, every `autotune` command must be valid.
"""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.space.file import open_space
from autotune.space.user_arguments import read_user_arguments
from tests.docs.pages import PAGES, ROOT, anchors
from tests.hurry import hurried, hurry
from tests.trainers import installed

FENCE = re.compile(r"^```(?:\{code-block\} )?(\w+)\n((?::[\w-]+:[^\n]*\n)*)\n?(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLES = ROOT / "examples"
SCRIPTS = ("model_id.py", "own_dataset_and_collator.py", "own_trainer.py")


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
        return [line.partition(" | ")[0] for line in lines if line.startswith("autotune ")]


def blocks_of(page: str) -> list[Block]:
    captions = re.compile(r":caption: (\S+)")
    return [
        Block(page, language, next(iter(captions.findall(options)), ""), text)
        for language, options, text in FENCE.findall(PAGES[page])
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
CONSOLE = [
    (block.page, command) for block in BLOCKS if block.language in ("console", "bash") for command in block.commands
]
PYTHON = [(block.page, block.text) for block in BLOCKS if block.language == "python" and not block.caption]
TRACED = "estimate"
"""In commands and Python that trace any model, for which there is no recording: tests/commands/estimate traces for real."""


def folder_of(page: str, folder: Path) -> Path:
    """The folder with the files that a page shows."""
    for block in blocks_of(page):
        if block.caption and "/" not in block.caption:
            (folder / block.caption).write_text(block.text, encoding="utf-8")
            if f"$ python {block.caption}" in PAGES[page]:
                subprocess.run([sys.executable, block.caption], cwd=folder, check=True, timeout=300)
    if page == "docs/columns.md":
        study = "reports/gpt2-mini-causal-lm-gb48-cpu"
        shutil.copytree(ROOT / study, folder / study)
    return folder


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What begins a page: its folder is the current one, and a recorded host answers."""

    def begin(page: str) -> None:
        hurry(monkeypatch, recorded=True)
        monkeypatch.chdir(folder_of(page, tmp_path))

    return begin


def run_for_real(words: list[str], folder: Path, text: str | None = None) -> None:
    """A Python process with these words; fewer trials and a shorter end than a reader would have."""
    words = [re.sub(r"^guide$", "guide --sequence-length 8", word) for word in words]
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, input=text, capture_output=True, text=True, timeout=600, env=hurried()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or text


def words_of(command: str) -> list[str]:
    """The command with fewer trials."""
    return shlex.split(re.sub(r"--n-trials \d+", "--n-trials 1", command))


def with_few_trials(code: str) -> str:
    """Python with fewer trials."""
    return re.sub(r"n_trials=\d+", "n_trials=1", code)


def pages_of(blocks: list[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(page for page, _ in blocks))


# Commands -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", pages_of([block for block in CONSOLE if TRACED not in block[1]]))
def test_the_commands_of_a_page_run(page: str, recorded: Callable[[str], None]) -> None:
    recorded(page)
    for command in (command for of, command in CONSOLE if of == page and TRACED not in command):
        result = CliRunner().invoke(app, words_of(command)[1:])
        assert result.exit_code == 0, (command, result.stderr)
        assert result.stdout.strip(), command


def test_the_readme_s_first_search_runs_for_real(tmp_path: Path) -> None:
    command = next(command for page, command in CONSOLE if page == "README.md" and " search " in command)
    run_for_real(["-m", *words_of(command), "--search-space", "quick"], tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages_of(CONSOLE))
def test_the_commands_of_a_page_run_for_real(page: str, tmp_path: Path) -> None:
    folder_of(page, tmp_path)
    for command in (command for of, command in CONSOLE if of == page):
        run_for_real(["-m", *words_of(command)], tmp_path)


def test_every_command_that_is_shown_is_valid() -> None:
    program = typer.main.get_command(app)
    for command in (
        command for block in BLOCKS if block.language in ("console", "bash", "sh") for command in block.commands
    ):
        _, name, *words = shlex.split(command)
        if name.startswith("-"):
            assert name in [option for parameter in program.params for option in parameter.opts]
        else:
            program.get_command(typer.Context(program), name).make_context(name, words)  # type: ignore[attr-defined]


# Python ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "code"), [block for block in PYTHON if TRACED not in block[1]])
def test_python_runs_to_its_last_assert(page: str, code: str, recorded: Callable[[str], None]) -> None:
    assert "assert" in code.strip().splitlines()[-1]
    recorded(page)
    exec(compile(with_few_trials(code), page, "exec"), {"__name__": "__main__"})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs_to_its_last_assert(
    script: str, recorded: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    recorded("docs/index.md")
    assert "assert" in (EXAMPLES / script).read_text().strip().splitlines()[-1]
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_s_cells_run(recorded: Callable[[str], None]) -> None:
    book = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    recorded("docs/index.md")
    # What answers was recorded with one version of transformers.
    text = "\n".join(code).replace(
        "in result.setup.training_arguments}", "in installed(result.setup.training_arguments)}"
    )
    names: dict[str, Any] = {"__name__": "__main__", "installed": installed}
    exec(compile(text, "notebook.ipynb", "exec"), names)
    assert set(names["frame"]["global_batch_size"]) == {16}
    arguments = names["arguments"]
    assert arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps == 16
    assert names["trainer"].state.global_step == 5


@pytest.mark.nightly
def test_the_notebook_runs_in_jupyter_and_shows_its_table(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    client = nbclient.NotebookClient(book, timeout=500, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=hurried())
    table = next(cell for cell in book.cells if cell.cell_type == "code" and "to_frame" in cell.source)
    assert "samples_per_second" in table.outputs[0].data["text/plain"]


# Files and links ------------------------------------------------------------------------------------------------


def test_every_yaml_file_that_is_shown_can_be_read(tmp_path: Path) -> None:
    for block in (block for block in BLOCKS if block.caption.endswith(".yaml")):
        path = tmp_path / block.caption
        path.write_text(block.text, encoding="utf-8")
        if "parameters:" in block.text:
            assert open_space(str(path)).values
        else:
            assert read_user_arguments(path).fields


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            file = (ROOT / page).parent / path if path else ROOT / page
            if not target.startswith("http") and (not file.exists() or (anchor and anchor not in anchors(file))):
                broken.append(f"{page}: {target}")
    assert not broken


def test_every_file_of_the_checkout_that_is_named_is_there() -> None:
    named = r"`((?:autotune|benchmarks|examples|search_spaces|tests|docs)/[\w/.]*)`"
    shown = {block.caption for block in BLOCKS}
    paths = {path for text in PAGES.values() for path in re.findall(named, text)}
    assert not {path for path in paths - shown if not (ROOT / path).exists()}
