"""Figures that README and the documentation quote are those of their reports."""

import subprocess
from decimal import Decimal

import pytest

from tests.docs.pages import PAGES, ROOT, docs_module

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


@pytest.mark.parametrize("report", [path for path in FIGURES.SOURCES if path.endswith(".md")])
def test_a_report_says_when_and_from_which_revision_it_was_made(report: str) -> None:
    assert FIGURES.MADE.search((ROOT / report).read_text(encoding="utf-8"))


def test_reports_are_as_new_as_the_code_that_they_measured() -> None:
    """Says which are not; measuring takes hours, so that no change of the code is held up by it."""
    try:
        older = list(FIGURES.ages())
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the revisions of the reports are not in this checkout")
    if older:
        pytest.xfail("\n".join(older))


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("held in 9 of 14", "12", "held in 12 of 14"),
        ("held in nine of 14", "12", "held in twelve of 14"),
        ("held in Nine of 14", "21", "held in 21 of 14"),
        ("held\nin **9.50** of 14", "12.345", "held\nin **12.35** of 14"),
        ("held in +1% of 14", "-0.5", "held in -1% of 14"),
        ("held in 1,234 of 14", "5678.9", "held in 5,679 of 14"),
    ],
)
def test_a_figure_keeps_the_form_that_it_has_on_the_page(text: str, value: str, written: str) -> None:
    sentence = "held in {held}% of" if "%" in text else "held in {held} of"
    assert FIGURES.renewed(f"It {text}.", sentence, {"held": Decimal(value)}) == f"It {written}."


def test_a_sentence_that_the_page_lost_is_named() -> None:
    with pytest.raises(LookupError, match="held in"):
        FIGURES.renewed("It holds.", "held in {held} of", {"held": 1})
