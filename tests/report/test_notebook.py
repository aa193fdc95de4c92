"""A result in a notebook: small, escaped and whole."""

import dataclasses
import re

import pytest

from autotune.core import Configuration, Outcome, Trial
from autotune.core.request import tuning_request
from autotune.core.stop_reason import StopKind, StopReason
from autotune.report import html, notebook
from tests.makers import configuration, ended, out_of_memory, result, trial, warned, workload
from tests.report.reading import Read

HOSTILE = '<script>alert("1")</script>|$x$'
EVERY = {
    "an answer": result(),
    "nothing fits": result([Trial(0, configuration(), out_of_memory(configuration()))]),
    "no baseline": result([trial(1)]),
    "one step": result([trial(0, steps=trial(0).measurement.steps[:1])]),
    "no trial yet": dataclasses.replace(result(), trials=()),
    "a setting of another version": result([trial(0, of=Configuration.exact(48, 8, {"warp": "on"}))]),
    "a value of another version": result([trial(0, of=configuration(precision="fp6"))]),
    "hostile names": result(
        [
            trial(0, observed_warnings=warned(HOSTILE)),
            Trial(1, configuration(16), ended(Outcome.CRASHED, reason=HOSTILE)),
        ],
        request=tuning_request(HOSTILE, 48),
        workload=workload(name=HOSTILE),
        stop=StopReason(StopKind.FAILED, detail=HOSTILE),
    ),
}


@pytest.mark.parametrize("kind", EVERY)
def test_any_result_is_shown_as_plain_html_that_asks_for_nothing(kind: str) -> None:
    page = Read(EVERY[kind]._repr_html_())
    assert not page.open, "every tag is closed"
    assert not {name for _, attributes, _ in page.elements for name in attributes} & {"src", "href", "onclick"}
    tags = {"div", "p", "b", "em", "i", "span", "mark", "style", "pre", "code", "ul", "li", "details", "summary"}
    assert {tag for tag, _, _ in page.elements} <= tags | {"table", "thead", "tbody", "tr", "th", "td"}
    assert "`" not in page.text
    assert len(repr(EVERY[kind])) < 500
    assert page.text.count(HOSTILE) >= 3 * (kind == "hostile names")


def test_it_begins_as_the_page_does_and_marks_the_answer_among_the_trials() -> None:
    cell, whole = Read(result()._repr_html_()), Read(html.page(result()))
    for kind in ("headline", "chip", "figure", "checks", "sign"):
        shown, on_page = ([text for at, text in read_of(view, kind)] for view in (cell, whole))
        assert shown
        assert shown == on_page[: len(shown)], kind
    changed = [text.strip() for _, text in cell.named("mark")]
    assert [re.sub(r"  +", "  ", line) for line in changed] == [
        "per_device_train_batch_size=16  # was 8",
        "gradient_accumulation_steps=3  # was 6",
        "bf16=True  # was False",
    ]
    assert [attributes.get("class") for attributes, _ in cell.named("tr")] == [None, "best", "baseline", ""]
    assert [text for _, text in cell.named("td")][:4] == ["4.00×", "40.0 ± 1.3", "500 MiB", "3 times"]


def read_of(view: Read, kind: str) -> list[tuple[dict[str, str], str]]:
    """The elements of a class."""
    return [(at, "".join(text)) for _, at, text in view.elements if kind in at.get("class", "").split()]


def test_of_many_trials_the_answer_the_user_s_own_and_the_fastest_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "ROWS", 4)
    slow = [trial(0, confirmed=10.0), *(trial(number, 10.0 + number) for number in range(1, 10))]
    page = Read(result([*slow, trial(10, 99.0, confirmed=99.0)])._repr_html_())
    assert "7 more trials" in page.text
    speeds = [text.partition(" ")[0] for _, text in page.named("td") if "±" in text]
    assert [round(float(speed)) for speed in speeds] == [99, 10, 19, 18]
