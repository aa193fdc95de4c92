"""The page about a report names what lies in a study's folder."""

import re

from autotune.report import FILES
from autotune.study_folder import FOLDERS, REQUEST, RUNS
from tests.docs.pages import PAGES


def test_every_file_and_folder_of_a_study_has_its_line() -> None:
    page = PAGES["docs/reading_a_report.md"]
    table = page.partition("| file | for |")[2].partition("\n\n")[0]
    named = {name.partition("/")[0] for name in re.findall(r"`([\w.]+(?:/[\w./]*)?)`", table)}
    assert {*FILES, *FOLDERS, REQUEST, RUNS, "study.db"} <= named
