"""The page about a report names what lies in a study's folder."""

import re

from autotune.report import FILES
from autotune.report.claim import HEADLINES, INTERRUPTED, State
from autotune.study.store import FOLDERS, OPTUNA_STUDY, REQUEST
from tests.docs.pages import DOCS, PAGES

PAGE = PAGES["docs/reading_a_report.md"]


def shown() -> list[str]:
    """The lines of a study's summary that the page includes."""
    found = re.search(
        r"```\{literalinclude\} (\S+summary\.md)\n:language: text\n:start-after: \"```\"\n:end-before: \"```\"", PAGE
    )
    assert found
    return (DOCS / found[1]).read_text(encoding="utf-8").split("```")[1].strip().splitlines()


def test_the_answer_that_is_shown_is_whole_and_each_of_its_labels_is_explained() -> None:
    headline, *told, why = shown()
    claim = f"{headline} {told[0].strip()}"
    assert re.fullmatch(r"(About )?[\d.]+x as fast as the Trainer's defaults.* +\(95% [\d.]+x to [\d.]+x\)", claim)
    assert why.startswith("Why it ended: ")
    checks = [match for line in told if (match := re.match(r"  (ok|warn|note) +(.+?\.)", line))]
    assert len(checks) >= 3
    for check in checks:
        assert f"`{check[1]}`" in PAGE
        assert f"| {check[2]} |" in PAGE, check[2]
    assert "**Why it ended**" in PAGE


def test_every_file_and_folder_of_a_study_has_its_line() -> None:
    table = PAGE.partition("| file | content |")[2].partition("\n\n")[0]
    named = {name.partition("/")[0] for name in re.findall(r"`([\w.]+(?:/[\w./]*)?)`", table)}
    assert {*FILES, *FOLDERS, REQUEST, OPTUNA_STUDY} <= named


def test_all_headlines_are_in_the_table_with_their_state() -> None:
    rows = re.findall(r'^\| "(.+?)" \| `(\w+)` \| .+ \|$', PAGE, re.MULTILINE)
    assert [state for _, state in rows] == [headline.state.value for headline in HEADLINES]
    for (text, _), headline in zip(rows, HEADLINES, strict=True):
        pattern = re.sub(r"\\{\w+\\}|^\\ ", ".*", re.escape(headline.text))
        assert re.fullmatch(pattern, text, re.IGNORECASE), (text, headline.text)
    assert {headline.state for headline in HEADLINES} == {*State}
    assert INTERRUPTED.format(trials="7 trials") in PAGE
