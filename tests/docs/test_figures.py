"""Figures that README and the documentation quote are those of their reports."""

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
