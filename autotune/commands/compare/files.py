"""The files of a comparison: table, page and picture, each written whole or not at all."""

from pathlib import Path

import pandas as pd

from autotune.commands.compare.plot import compared_bars
from autotune.commands.compare.text import compared_page
from autotune.report.files import storage_errors, write_table, write_whole
from autotune.report.formats import plain_rows

COMPARED_FILES = ("compare.csv", "compare.parquet", "compare.md", "compare.svg")


def write_compared(folder: Path, table: pd.DataFrame) -> list[Path]:
    """Write all of COMPARED_FILES into the folder; returns their paths. Raises StorageFailed."""
    *tables, page, picture = (folder / name for name in COMPARED_FILES)
    told = compared_page(plain_rows(table), picture.name)
    with storage_errors(folder, "comparison", "Name another folder as --output."):
        folder.mkdir(parents=True, exist_ok=True)
        for path in tables:
            write_table(path, table)
        write_whole(page, lambda path: path.write_text(told, encoding="utf-8"))
        write_whole(picture, lambda path: compared_bars(path, table))
    return [*tables, page, picture]
