"""The files of a ladder's folder, each written whole or not at all: table, picture, and the same for programs."""

from pathlib import Path

from autotune.commands.guide.ladder import Ladder
from autotune.commands.guide.plot import ladder_bars
from autotune.commands.guide.table import ladder_frame, ladder_page
from autotune.core.io import write_json
from autotune.report.files import storage_errors, write_table, write_whole

LADDER_FILES = ("guide.json", "guide.csv", "guide.md", "guide.svg")


def write_ladder(folder: Path, ladder: Ladder) -> None:
    """Write all of LADDER_FILES; raises StorageFailed."""
    told, table, page, picture = (folder / name for name in LADDER_FILES)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(told, ladder.to_dict())
        write_table(table, ladder_frame(ladder))
        write_whole(page, lambda path: path.write_text(ladder_page(ladder, picture.name), encoding="utf-8"))
        write_whole(picture, lambda path: ladder_bars(path, ladder))
