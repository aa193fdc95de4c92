"""The page about a report names what lies in a study's folder."""

import re

from autotune.report import FILES
from autotune.study.store import FOLDERS, REQUEST, RUNS
from tests.docs.pages import DOCS, PAGES

PAGE = PAGES["docs/reading_a_report.md"]


def shown() -> list[str]:
    """The lines of a study's summary that the page includes."""
    found = re.search(r"```\{literalinclude\} (\S+summary\.md)\n:language: text\n:lines: ([\d,-]+)\n```", PAGE)
    assert found
    lines = (DOCS / found[1]).read_text(encoding="utf-8").splitlines()
    spans = [(span.partition("-")[0], span.rpartition("-")[2]) for span in found[2].split(",")]
    return [line for first, last in spans for line in lines[int(first) - 1 : int(last)]]


def test_the_answer_that_is_shown_is_whole_and_each_of_its_labels_is_explained() -> None:
    headline, *told, why = shown()
    assert re.match(r"[\d.]+x faster than your settings \(95 % interval ", headline)
    assert told[0].startswith("  best ")
    assert why.startswith("Why it ended: ")
    assert "```" not in "".join(shown())
    labels = {line[:10].strip() for line in told} - {""}
    assert {"best", "baseline", "losses", "also"} <= labels
    assert all(f"**{label}**" in PAGE for label in (*labels, "Why it ended"))


def test_every_file_and_folder_of_a_study_has_its_line() -> None:
    table = PAGE.partition("| file | for |")[2].partition("\n\n")[0]
    named = {name.partition("/")[0] for name in re.findall(r"`([\w.]+(?:/[\w./]*)?)`", table)}
    assert {*FILES, *FOLDERS, REQUEST, RUNS, "study.db"} <= named
