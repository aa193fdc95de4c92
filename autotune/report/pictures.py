"""Every figure of a report as text that goes into a page."""

from dataclasses import dataclass

from autotune.report.facts import Facts


@dataclass(frozen=True)
class Picture:
    """One figure: name: short, for links and file names; title and caption: plain text; svg: an `<svg>` element with a viewBox.

    Colours are CSS variables of the page (`var(--ink)`, `var(--accent)`, ...), so that it is read in light and dark.
    """

    name: str
    title: str
    caption: str
    svg: str


def pictures(facts: Facts) -> list[Picture]:  # noqa: ARG001
    """The figures that these facts allow, in the order in which they are read."""
    return []
