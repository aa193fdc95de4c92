"""Plain text for Markdown and for a terminal."""

import re
import textwrap
from collections.abc import Iterable, Sequence


def one_line(text: str) -> str:
    """The text on a single line, without control codes, which a library's message may contain."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def wrapped(text: str, first: str = "", then: str = "  ", width: int = 80) -> list[str]:
    """The text in lines of a terminal. first, then: what the first and every further line begins with."""
    return textwrap.wrap(one_line(text), width, initial_indent=first, subsequent_indent=then)


def markdown_text(text: str) -> str:
    """The text on one line, escaped for Markdown: for table cells and list items too.

    A single underscore inside a word has no meaning there and stays.
    """
    text = re.sub(r"[\\`*\[\]|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|^[#+-]+(?=\s)", r"\\\g<0>", one_line(text))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_list(texts: Iterable[str]) -> list[str]:
    """An escaped list item of each text."""
    return [f"- {markdown_text(text)}" for text in texts]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = False) -> list[str]:
    """Lines of a table, its cells escaped. numeric: all columns but the first are aligned to the right."""
    rules = "|".join(["---", *["---:" if numeric else "---"] * (len(head) - 1)])
    head_line, *lines = (f"| {' | '.join(map(markdown_text, cells))} |" for cells in (head, *rows))
    return [head_line, f"|{rules}|", *lines]
