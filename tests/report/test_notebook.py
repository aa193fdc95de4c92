"""A result in a notebook: small, escaped, whole, and shown by a real kernel."""

import dataclasses
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autotune.commands.result import TuningResult
from autotune.core import Configuration, Outcome, Trial
from autotune.core.request import tuning_request
from autotune.report import notebook
from tests.makers import configuration, ended, out_of_memory, result, trial, workload

ROOT = Path(__file__).parents[2]
HOSTILE = '<script>alert("1")</script>|$x$'
EVERY = {
    "an answer": result(),
    "nothing fits": result([Trial(0, configuration(), out_of_memory(configuration()))]),
    "no baseline": result([trial(1)]),
    "a baseline that crashed": result([Trial(0, configuration(), ended(Outcome.CRASHED)), trial(1, 20.0)]),
    "one step": result([trial(0, steps=trial(0).measurement.steps[:1])]),
    "no trial yet": dataclasses.replace(result(), trials=()),
    "a setting of another version": result([trial(0, of=Configuration.exact(48, 8, {"warp": "on"}))]),
    "a value of another version": result([trial(0, of=configuration(precision="fp6"))]),
    "hostile names": result(
        [
            trial(0, observed_warnings=(HOSTILE,)),
            Trial(1, configuration(16), ended(Outcome.CRASHED, reason=HOSTILE)),
        ],
        request=tuning_request(HOSTILE, 48),
        workload=workload(name=HOSTILE),
        stop_reason=HOSTILE,
    ),
}


class Tags(HTMLParser):
    """The tags that a page opens, checked to be closed in their order; its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}
        self.seen.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


@pytest.mark.parametrize("kind", EVERY)
def test_any_result_is_shown_as_plain_html_that_asks_for_nothing(kind: str) -> None:
    page = Tags(EVERY[kind]._repr_html_())
    assert set(page.seen) <= {"div", "p", "b", "pre", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert len(repr(EVERY[kind])) < 500


def test_names_reasons_and_warnings_are_shown_as_text() -> None:
    text = Tags(EVERY["hostile names"]._repr_html_()).text
    assert text.count(HOSTILE) >= 3


def test_of_many_trials_the_best_the_baseline_and_the_fastest_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "ROWS", 4)
    slow = [trial(number, 10.0 + number) for number in range(10)]
    page = Tags(result([*slow, trial(10, 99.0, confirmed=99.0)])._repr_html_())
    assert "7 more trial(s)" in page.text
    cells = page.text.split("\n")
    assert [number for number in ("0", "1", "7", "8", "9", "10 (best)") if number in cells] == [
        "0",
        "8",
        "9",
        "10 (best)",
    ]


@pytest.mark.slow
def test_a_notebook_shows_a_loaded_study_and_a_comparison(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's own start
        import nbclient
        import nbformat

        result().save(tmp_path / "study")
        cells = [
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport autotune\n"
            "result = autotune.TuningResult.load('study')\nresult",
            "autotune.compare([result, 'study'], price_per_hour='2 EUR', output_dir='.')[['study', 'speedup']]",
        ]
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
        nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [cell.outputs[-1].data["text/html"] for cell in book.cells]
    assert shown[0] == TuningResult.load(tmp_path / "study")._repr_html_()
    assert "speedup" in shown[1]
    assert "study (2)" in shown[1]
