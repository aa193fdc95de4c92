"""Troubleshooting: every kind of error is there, and every message that it quotes is one that the program says."""

import re
from functools import cache

from tests.docs.pages import PAGES, docs_module

MADE = docs_module("generated")
PAGE = PAGES["docs/troubleshooting.md"]
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
QUOTED = [
    (title, said) for title, text in SECTIONS.items() for said in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
]


@cache
def raised() -> list[tuple[str, str, str]]:
    """(error class, message, advice) of every place of the source that makes one."""
    return list(MADE.raised())


@cache
def texts_of_source() -> set[str]:
    return set(MADE.sentences())


def worded(text: str) -> bool:
    """Whether it says anything before it is filled in."""
    return re.search(r"\w", text) is not None


def test_every_error_has_its_section_with_its_exit_code() -> None:
    for error in MADE.ERRORS:
        assert error.__name__ in SECTIONS
        if error is not MADE.errors.AutotuneError:
            assert f"Exit code {error.exit_code}." in SECTIONS[error.__name__]


def is_of_the_program(title: str, quoted: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in quoted.split("…"))
    texts = [text for name, text, _ in raised() if name == title]
    others = () if texts and all(map(worded, texts)) else texts_of_source()  # made elsewhere
    return any(re.search(pattern, text.replace("`", "'")) for text in (*texts, *others))


def test_every_message_that_is_quoted_is_one_of_the_program_s() -> None:
    assert not [f"{title}: {quoted}" for title, quoted in QUOTED if not is_of_the_program(title, quoted)]
