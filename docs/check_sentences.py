"""Length of the sentences of README.md and docs/*.md; exit code 1 where the mean of a page is too long.

Headings, code blocks, tables, pictures, link targets and what a page includes do not count. A list item without a full stop is
one sentence, and code within a sentence is one word.
"""

import re
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
LONGEST_MEAN = 20.0
"""Words of a sentence, as the mean of a page."""

LEFT_OUT = (r"^ *(`{3,}|:{3,})[\s\S]*?^ *\1 *$", r"^ *\|.*$", r"^#.*$", r"!\[[^]]*\]\([^)]*\)")
BULLET = r"\s*(?:[-*]|\d+\.) "
PARAGRAPHS = rf"\n\s*\n|\n(?={BULLET})"
ENDS = r"(?<=[.!?])[)\"'*]*\s+(?=[\"'(*]*[A-Z0-9])"


def sentences(page: str) -> list[list[str]]:
    """The words of each sentence of a page."""
    for pattern in LEFT_OUT:
        page = re.sub(pattern, "\n", page, flags=re.MULTILINE)
    page = re.sub(r"`[^`]+`", "Code", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page))
    paragraphs = [re.sub(f"^{BULLET}", "", paragraph) for paragraph in re.split(PARAGRAPHS, page)]
    texts = [text for paragraph in paragraphs for text in re.split(ENDS, paragraph)]
    return [words for text in texts if (words := [word for word in text.split() if re.search(r"\w", word)])]


def main() -> int:
    """Print a line for each page; 1 where the sentences of one are too long."""
    too_long = False
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        on_page = sentences(path.read_text(encoding="utf-8")) or [[]]
        lengths = [len(words) for words in on_page]
        too_long |= fmean(lengths) > LONGEST_MEAN
        counts = f"{sum(lengths):5} words {len(on_page):4} sentences, mean {fmean(lengths):4.1f}"
        print(f"{path.name:26} {counts}, longest {max(lengths)}: {' '.join(max(on_page, key=len))[:150]}")
    return int(too_long)


if __name__ == "__main__":
    raise SystemExit(main())
