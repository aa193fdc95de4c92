"""Plain text for Markdown and for a terminal."""

import re
from collections.abc import Iterable, Sequence

from autotune.core.units import broken

WIDTH = 80
"""Columns of a terminal that every text fits."""


def one_line(text: str) -> str:
    """The text on a single line, without control codes, which a library's message may contain."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def wrapped(text: str, first: str = "", further: str = "  ") -> list[str]:
    """The text as lines of a terminal; first, further: indentation of the first line and others."""
    return broken(one_line(text), WIDTH, first, further)


def markdown_text(text: str) -> str:
    """The text on one line, escaped for Markdown: for table cells and list items too.

    A single underscore inside a word has no meaning there and stays.
    """
    text = re.sub(r"[\\`*\[\]|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|^[#+-]+(?=\s)", r"\\\g<0>", one_line(text))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_list(texts: Iterable[str]) -> list[str]:
    """An escaped list item of each text."""
    return [f"- {markdown_text(text)}" for text in texts]


def markdown_table(rows: Iterable[Sequence[str]], numeric: Sequence[bool] = ()) -> list[str]:
    """Lines of a table, the first row its head, its cells escaped. numeric: of each column; by default all but the first."""
    head, *body = ([markdown_text(cell) for cell in row] for row in rows)
    rule = ["---:" if right else "---" for right in numeric or [False, *[True] * (len(head) - 1)]]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]


def sentence(text: str) -> str:
    """The text with a capital first letter and a full stop."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}" if text else ""
