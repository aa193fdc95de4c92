"""Any text as Markdown shows it, letter by letter."""

import re


def one_line(text: str) -> str:
    """The text on a single line without control codes, which may stand in what a library says."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def markdown_text(text: str) -> str:
    """The text as Markdown shows it, in one line: in a table's cell and behind a list's dash too.

    A lone underscore inside a word means nothing there.
    """
    text = re.sub(r"[\\`*\[\]|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|^[#+-]+(?=\s)", r"\\\g<0>", one_line(text))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
