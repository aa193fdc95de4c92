"""The examples run as their reader would run them, to their last assert, in a folder of their own and without a network."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hurry import hurried

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def run(command: list[str], folder: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=600, env=hurried())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_runs_to_its_last_assert(script: Path, tmp_path: Path) -> None:
    assert "assert" in script.read_text().strip().splitlines()[-1]
    done = run([sys.executable, str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_script_runs_from_standard_input_too(tmp_path: Path) -> None:
    done = run([sys.executable, "-"], tmp_path, (EXAMPLES / "own_trainer.py").read_text())
    assert done.returncode == 0, done.stderr


def test_the_notebook_runs_to_its_last_assert_and_shows_its_table(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = f"""
import nbclient, nbformat
book = nbformat.read({str(EXAMPLES / "notebook.ipynb")!r}, as_version=4)
assert not any(cell.get("outputs") for cell in book.cells), "saved with outputs"
nbclient.NotebookClient(book, timeout=500, resources={{"metadata": {{"path": {str(tmp_path)!r}}}}}).execute()
cells = [cell for cell in book.cells if cell.cell_type == "code"]
assert "assert" in cells[-1].source.splitlines()[-2]
table = next(cell for cell in cells if "to_frame" in cell.source)
print("TABLE", table.outputs[0].data["text/plain"])
"""
    done = run([sys.executable, "-W", "ignore", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "samples_per_second" in done.stdout


def test_there_are_three_scripts_and_a_notebook() -> None:
    assert [path.name for path in SCRIPTS] == ["model_id.py", "own_dataset_and_collator.py", "own_trainer.py"]
    assert (EXAMPLES / "notebook.ipynb").is_file()
