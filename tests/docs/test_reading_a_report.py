"""The page about a report names what lies in a study's folder."""

import re

from autotune.report import FILES
from autotune.study.store import FOLDERS, OPTUNA_STUDY, REQUEST
from tests.docs.pages import PAGES

PAGE = PAGES["docs/reading_a_report.md"]


def test_every_file_and_folder_of_a_study_has_its_line() -> None:
    table = PAGE.partition("| file | content |")[2].partition("\n\n")[0]
    named = {name.partition("/")[0] for name in re.findall(r"`([\w.]+(?:/[\w./]*)?)`", table)}
    assert {*FILES, *FOLDERS, REQUEST, OPTUNA_STUDY} <= named
