"""The files of a ladder's folder, each written whole or not at all: table, picture, and the same for programs."""

from pathlib import Path

from autotune.ladder import Ladder
from autotune.probe.order import write_json
from autotune.report.files import _storage, _whole, write_table
from autotune.report.ladder_bars import ladder_bars
from autotune.report.ladder_table import ladder_frame, ladder_page

LADDER_FILES = ("guide.json", "guide.csv", "guide.md", "guide.svg")


def write_ladder(folder: Path, ladder: Ladder) -> None:
    """Write all of LADDER_FILES; raises StorageFailed."""
    told, table, page, picture = (folder / name for name in LADDER_FILES)
    with _storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(told, ladder.to_dict())
        write_table(table, ladder_frame(ladder))
        _whole(page, lambda path: path.write_text(ladder_page(ladder, picture.name), encoding="utf-8"))
        _whole(picture, lambda path: ladder_bars(path, ladder))
