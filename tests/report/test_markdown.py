"""Texts of others in a page of Markdown."""

import pytest

from autotune.report.markdown import markdown_text, one_line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("adamw_torch_fused", "adamw_torch_fused"),
        ("__init__", r"\_\_init\_\_"),
        ("a|b", r"a\|b"),
        ("$x$ *y* `z` [a](b)", r"\$x\$ \*y\* \`z\` \[a\](b)"),
        ("R&D <b>", "R&amp;D &lt;b&gt;"),
        ("one\r\n## two", "one ## two"),
        ("## no title", r"\## no title"),
        ("- no list", r"\- no list"),
        ("-", "-"),
        ("-5 %", "-5 %"),
        ("", ""),
    ],
)
def test_markdown_shows_the_text_itself(text: str, told: str) -> None:
    assert markdown_text(text) == told


def test_a_line_has_no_codes_that_a_terminal_obeys() -> None:
    assert one_line(" a \x1b[31mred\x00\n\tb\u2028c ") == "a [31mred b c"
