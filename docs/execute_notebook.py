"""Executes the notebooks of examples/ in an empty folder and stores their outputs: python docs/execute_notebook.py [NAME...]"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> None:
    names = sys.argv[1:] or sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
    for name in names:
        execute(EXAMPLES / name)


def execute(notebook: Path) -> None:
    book = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=None, record_timing=False, resources={"metadata": {"path": folder}}).execute()
    for cell in (cell for cell in book.cells if cell.cell_type == "code"):
        # Libraries warn on standard error, some with paths of the machine.
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    book.metadata.pop("widgets", None)
    book.metadata.language_info = {"name": "python"}
    notebook.write_text(nbformat.writes(book, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
