"""Executes examples/notebook.ipynb in an empty folder and stores its outputs: python docs/execute_notebook.py"""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


def main() -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(book, timeout=None, record_timing=False, resources={"metadata": {"path": folder}}).execute()
    for cell in (cell for cell in book.cells if cell.cell_type == "code"):
        # Libraries warn on standard error, some with paths of the machine.
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    book.metadata.pop("widgets", None)
    book.metadata.language_info = {"name": "python"}
    NOTEBOOK.write_text(nbformat.writes(book, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
