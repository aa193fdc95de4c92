"""Tables in the formats of other programs.

parquet   equal when read back, by any reader               programs
jsonl     an infinite number is the text "Infinity"         programs
csv       a text that one would run begins with '           spreadsheets
markdown  six digits, one line a cell                       people
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.report.columns import TEXT
from autotune.report.markdown import markdown_table, one_line

RUN = "=+\\-@\t\r\n"
"""First characters of a text that a spreadsheet may take for a formula (OWASP, CSV Injection)."""


@dataclass(frozen=True)
class Format:
    """One of FORMATS."""

    suffix: str  # of its files
    make: Callable[[pd.DataFrame], str | bytes]  # the whole file


def formatted(table: pd.DataFrame, format: str) -> str | bytes:
    """The whole file in one of FORMATS. Raises InvalidRequest for another."""
    if format not in FORMATS:
        raise InvalidRequest(f"There is no format {format!r}.", did_you_mean(format, FORMATS))
    return FORMATS[format].make(table)


def format_of(path: Path) -> str:
    """The format of a file's suffix, which may be the format's name; raises InvalidRequest."""
    names = {format.suffix: name for name, format in FORMATS.items()}
    suffix = path.suffix.lower()
    if suffix[1:] in FORMATS:
        return suffix[1:]
    if suffix not in names:
        raise InvalidRequest(f"The format of {path.name!r} is unknown.", f"End the name in {', '.join(names)}.")
    return names[suffix]


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Each row as Python's own values; None if one is missing."""
    objects = table.astype(object).where(table.notna(), None)
    return [dict(zip(table.columns, row, strict=True)) for row in objects.itertuples(index=False, name=None)]


# Formats ----------------------------------------------------------------------------------------------------------


def _csv(table: pd.DataFrame) -> str:
    """CSV written by hand: Python's writer leaves a lone carriage return bare, which breaks the row for every reader."""
    lines = [list(table.columns), *(list(row.values()) for row in plain_rows(table))]
    return "".join(",".join(map(_cell, line)) + "\n" for line in lines)


def _cell(value: Any) -> str:
    text = "" if value is None else quoted(value) if isinstance(value, str) else repr(value)
    return '"' + text.replace('"', '""') + '"' if re.search('[",\r\n]', text) else text


def _parquet(table: pd.DataFrame) -> bytes:
    content: bytes = table.to_parquet(None, index=False)
    return content


def _json_lines(table: pd.DataFrame) -> str:
    """JSON lines by Python's own writer: pandas' keeps 15 digits of a number, and some need 17."""
    return "".join(json.dumps({name: _json(value) for name, value in row.items()}) + "\n" for row in plain_rows(table))


def _json(value: Any) -> Any:
    """JSON has no infinity: the text for it is that of protobuf's JSON mapping."""
    is_infinite = isinstance(value, float) and math.isinf(value)
    return ("Infinity" if value > 0 else "-Infinity") if is_infinite else value


def _markdown(table: pd.DataFrame) -> str:
    rows = table.astype(object).map(_short).to_numpy().tolist()
    numeric = [dtype != TEXT for dtype in table.dtypes.astype(str)]
    return "\n".join(markdown_table([list(table.columns), *rows], numeric)) + "\n"


FORMATS = {
    "csv": Format(".csv", _csv),
    "parquet": Format(".parquet", _parquet),
    "jsonl": Format(".jsonl", _json_lines),
    "markdown": Format(".md", _markdown),
}


# Cells ------------------------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """The text with an apostrophe before what a spreadsheet would run, and one more before apostrophes in front of that."""
    return re.sub(rf"\A(?='*[{RUN}])", "'", text)


def _short(value: Any) -> str:
    """One line for people: six digits of a number; nothing if it is missing."""
    if value is None or value is pd.NA or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))
