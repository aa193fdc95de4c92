"""The table of how long a page takes and how large it is, from real runs."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from page import lines_of, main


def test_a_small_study_s_page_is_measured_and_written(tmp_path: Path) -> None:
    main(6, 2, tmp_path / "page.md")
    title, machine, *_, row = (tmp_path / "page.md").read_text().partition("\n\nEvery")[0].splitlines()[::2]
    assert title.startswith("# How long a page takes")
    assert "cores" in machine
    assert re.match(
        r"\| 6 \| 2 \| [\d.]+ s \| [\d.]+ s \| [\d.]+ s \| \d+,\d+ bytes \| under 3 s and 2,000,000 bytes:", row
    )


@pytest.mark.parametrize(
    ("run", "said"), [([2.9, 2.0, 1e6], "met"), ([3.1, 2.0, 1e6], "missed"), ([2.9, 2.0, 2.1e6], "missed")]
)
def test_one_run_that_is_too_long_or_too_large_misses_the_target(run: list[float], said: str) -> None:
    table = lines_of(500, [[1.0, 1.0, 1e6], run])
    assert table[2].endswith(f": {said} |")
