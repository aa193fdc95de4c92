"""Write the paragraphs of Python's own documentation, one a line: real text of realistic lengths that needs no network."""

import sys
from pathlib import Path


def paragraphs() -> list[str]:
    """About 2,600 paragraphs, from a few words to a few thousand."""
    from pydoc_data.topics import topics

    every = (part for text in topics.values() for part in text.split("\n\n"))
    return [" ".join(part.split()) for part in every if part.strip()]


def main() -> None:
    """`python_topics.py FILE`."""
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(paragraphs()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
