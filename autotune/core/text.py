"""Texts of other origin, as a terminal may show them."""

HIDDEN = ("Cc", "Cf", "Zl", "Zp")
"""Unicode's categories of characters that nobody sees: they move a terminal's cursor, or turn the order of the text."""


def printable(text: object) -> str:
    r"""The text with all that cannot be printed as an escape (`\x1b`), line breaks too."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in str(text)
    )
