"""A result in a notebook: small, escaped and whole."""

import dataclasses

import pytest

from autotune.core import Configuration, Outcome, Trial
from autotune.core.request import tuning_request
from autotune.report import notebook
from tests.makers import configuration, ended, out_of_memory, result, trial, workload
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
            trial(0, observed_warnings=(HOSTILE,)),
            Trial(1, configuration(16), ended(Outcome.CRASHED, reason=HOSTILE)),
        ],
        request=tuning_request(HOSTILE, 48),
        workload=workload(name=HOSTILE),
        stop_reason=HOSTILE,
    ),
}


@pytest.mark.parametrize("kind", EVERY)
def test_any_result_is_shown_as_plain_html_that_asks_for_nothing(kind: str) -> None:
    page = Read(EVERY[kind]._repr_html_())
    assert not page.open, "every tag is closed"
    assert not {name for _, attributes, _ in page.elements for name in attributes} & {"src", "href", "onclick"}
    assert {tag for tag, _, _ in page.elements} <= {
        "div",
        "p",
        "b",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert len(repr(EVERY[kind])) < 500
    assert page.text.count(HOSTILE) >= 3 * (kind == "hostile names")


def test_of_many_trials_the_best_the_baseline_and_the_fastest_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "ROWS", 4)
    slow = [trial(number, 10.0 + number) for number in range(10)]
    page = Read(result([*slow, trial(10, 99.0, confirmed=99.0)])._repr_html_())
    assert "7 more trials" in page.text
    numbers = ("0 (baseline)", "1", "7", "8", "9", "10 (best)")
    cells = [text for _, text in page.named("td")]
    shown = [number for number in numbers if number in cells]
    assert shown == ["0 (baseline)", "8", "9", "10 (best)"]
