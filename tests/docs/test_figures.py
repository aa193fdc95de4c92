"""Figures that README and the documentation quote are those of their reports."""

import subprocess

import pytest

from tests.docs.pages import PAGES, docs_module

FIGURES = docs_module("figures")
QUOTES = list(FIGURES.quotes())


@pytest.mark.parametrize("report", FIGURES.SOURCES)
def test_pages_say_what_the_report_says(report: str) -> None:
    """Else run `make figures`."""
    differ = []
    for path, page, sentence, figures in QUOTES:
        if path == report:
            try:
                better = FIGURES.renewed(PAGES[page], sentence, figures)
            except LookupError:
                differ.append(f"{page} has no such sentence: {sentence}")
                continue
            pairs = zip(PAGES[page].splitlines(), better.splitlines(), strict=True)
            differ += [f"{page}: {now}\n  by the report: {new}" for now, new in pairs if now != new]
    assert not differ, "\n".join(differ)


def test_reports_are_as_new_as_the_code_that_they_measured() -> None:
    """Says which are not; measuring takes hours, so that no change of the code is held up by it."""
    try:
        older = list(FIGURES.ages())
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the revisions of the reports are not in this checkout")
    if older:
        pytest.xfail("\n".join(older))
