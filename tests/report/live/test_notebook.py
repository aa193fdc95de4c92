"""A search in a notebook: a real kernel runs it, and what it shows is one display that was updated."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from autotune.report.live.notebook import NotebookTable, in_notebook, page
from autotune.study.plan import Progress, ProgressKind
from tests.makers import configuration, standing_of, trial
from tests.terminals import ROOT

SEARCH = """
import sys
sys.path.insert(0, {root!r})
import autotune
from pytest import MonkeyPatch
from tests.hurry import hurry
hurry(MonkeyPatch(), recorded=True)
result = autotune.search("bert-mini", global_batch_size=8, sequence_length=32, device="cpu", n_trials=2,
                         sampler="random", space="quick", output_dir={folder!r})
"""


def progress(**facts: Any) -> Progress:
    slow, fast = trial(0, 10.0), trial(1, 20.0, of=configuration(16, precision="<script>"))
    state = {
        "number": 2,
        "configuration": fast.configuration,
        "probes_left": 3,
        "seconds_to_go": 61.0,
    }
    return Progress(ProgressKind.PROBING, standing_of((slow, fast)), **state | facts)


def test_the_page_tells_trials_best_and_what_is_left_and_escapes_all_of_it() -> None:
    shown = page(progress(), 61.0, notice="stopping & going")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "stopping &amp; going" in shown
    assert "2 of 5   1:01" in shown
    assert "about 1 min to go" in shown
    assert "fastest so far, not proven: 20.0" in shown
    assert "(trial 1), 2.00x the baseline" in shown
    assert shown.count("<tr>") == 3


def test_nothing_of_ipython_is_loaded_where_it_is_not_already() -> None:
    program = (
        "import sys; from autotune.report.live.views import following; following(None); print('IPython' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "False\n"
    assert not in_notebook()


def test_an_interrupted_cell_shows_one_line() -> None:
    table, error = NotebookTable(), KeyboardInterrupt()
    table.__enter__()(progress())
    table.__exit__(KeyboardInterrupt, error, None)
    (line,) = error._render_traceback_()  # type: ignore[attr-defined]
    assert line.startswith("Interrupted. 2 trials kept. ")


def test_a_front_end_without_displays_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display

    monkeypatch.setattr(IPython.display, "display", lambda *_, **__: None)
    with NotebookTable() as watch:
        watch(progress())


def test_a_search_in_a_notebook_shows_one_display_updated_in_place(tmp_path: Path) -> None:
    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_code_cell(SEARCH.format(root=str(ROOT), folder=str(tmp_path / "reports"))),
        nbformat.v4.new_code_cell(
            "assert autotune.search.__module__ == 'autotune.commands.search'\nprint(len(result.trials))\nresult"
        ),
    ]
    book.cells.append(nbformat.v4.new_code_cell('autotune.search("bert-mini", 0)'))
    client = NotebookClient(book, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})

    with client.setup_kernel():
        client.execute_cell(book.cells[0], 0)
        client.execute_cell(book.cells[1], 1)
        with pytest.raises(CellExecutionError):
            client.execute_cell(book.cells[2], 2)
    displays = [output for output in book.cells[0].outputs if output.output_type == "display_data"]
    assert len(displays) == 1  # beside it a library may warn that it has no widgets
    html = displays[0].data["text/html"]
    assert html.count("<tr>") == 3
    assert "(baseline)" in html
    assert "2 of 2" in html
    assert book.cells[1].outputs[0].text == "2\n"
    assert "Why it ended: " in book.cells[1].outputs[1].data["text/html"]
    (line,) = book.cells[2].outputs[0].traceback
    assert line.startswith("InvalidRequest: ")
