"""How every figure is drawn: one manner, colours by what they mean, and matplotlib's SVG made fit for a page.

draw(result) ──matplotlib, placeholder colours──> SVG ──┬──> page: colours are the page's CSS variables
                                                       └──> file of its own: real colours, its name above it
"""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

ROLES = {
    "ink": "#222222",
    "muted": "#6a6a6a",
    "grid": "#dddddd",
    "paper": "#ffffff",
    "accent": "#4878a8",
    "best": "#2a8c4a",
    "baseline": "#444444",
    "bad": "#c0392b",
    "c1": "#4878a8",
    "c2": "#e08a3c",
    "c3": "#5a9e6f",
    "c4": "#b5546a",
    "c5": "#8064a2",
    "c6": "#8a6d3b",
    "c7": "#3a9ba8",
    "c8": "#8c8c8c",
}
"""What a colour says -> the real one, of a file that stands alone. On a page it is the CSS variable of that name."""

_PLACEHOLDERS = {f"#0a0b{at:02x}": role for at, role in enumerate(ROLES)}
INK, MUTED, GRID, PAPER, ACCENT, BEST, BASELINE, BAD, *PARTS = _PLACEHOLDERS
"""Colours to draw with: none that anyone would choose, and each is replaced."""

WIDTH, HEIGHT = 5.0, 3.4
"""Inches: on a phone's width its text is as large as it says."""

SMALL = 8.5
"""Points of the smaller text."""

_MANNER = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "hatch.color": BAD,
    "hatch.linewidth": 0.7,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "autotune",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}
_FONT = "font-family: system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; stroke-linejoin: round"
_MEASURES = frozenset(("d", "x", "y", "width", "height", "transform"))
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


@dataclass(frozen=True)
class Drawing:
    """One drawn figure. name: for links, ids and files; title and caption: plain sentences; figure: matplotlib's."""

    name: str
    title: str
    caption: str
    figure: Any


@contextlib.contextmanager
def manner() -> Iterator[None]:
    """Draw, and write, every figure inside this: nobody's own matplotlib settings count, and all text is plain text."""
    import matplotlib.style

    with matplotlib.style.context(["default", _MANNER]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # it is drawn by the reader's own fonts
        yield


def new_figure(
    height: float = HEIGHT, width: float = WIDTH, layout: Literal["constrained"] | None = "constrained"
) -> Any:
    """An empty figure of this size in inches, which no window and no global state knows."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasSVG(figure)
    return figure


def legend_below(figure: Any, columns: int, **more: Any) -> None:
    """The names of what is drawn, below the figure, where there are any."""
    if any(axes.get_legend_handles_labels()[0] for axes in figure.axes) or more:
        figure.legend(loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=1.2, **more)


def page_svg(drawing: Drawing) -> str:
    """An `<svg>` element for a page: it takes the page's colours and width, and no id of it is another figure's."""
    return _svg(drawing, {role: f"var(--{role})" for role in ROLES}, alone=False)


def file_svg(drawing: Drawing, title: str) -> str:
    """A whole SVG file: the same drawing in real colours on white, with this title above it."""
    drawing.figure.suptitle(title, fontsize="medium")
    drawing.figure.set_facecolor(PAPER)
    return _svg(drawing, ROLES, alone=True)


def _svg(drawing: Drawing, colours: dict[str, str], alone: bool) -> str:
    written = io.StringIO()
    how = {"facecolor": PAPER if alone else "none", "metadata": dict.fromkeys(("Date", "Creator", "Format", "Type"))}
    drawing.figure.savefig(written, format="svg", **how)
    root = ElementTree.fromstring(written.getvalue())
    _without_waste(root)
    referred = set(re.findall(r"#([\w-]+)", " ".join(value for one in root.iter() for value in one.attrib.values())))
    for element in root.iter():
        _plain(element, drawing.name, referred, colours)
    if not alone:
        del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "style": _FONT}
    title = ElementTree.Element("title")
    title.text = drawing.title
    root.insert(0, title)
    return ElementTree.tostring(root, encoding="unicode")


def _without_waste(root: Any) -> None:
    """Leave out metadata and the style sheet (it would speak of the whole page), and say what all of a group share once."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
        marks = [child for child in parent if child.tag.endswith("}use")]
        styles = {child.get("style") for child in marks}
        if len(marks) > 1 and len(styles) == 1 and None not in styles and len(marks) == len(parent):
            parent.set("style", styles.pop())
            for child in marks:
                del child.attrib["style"]


def _plain(element: Any, name: str, referred: set[str], colours: dict[str, str]) -> None:
    """Our names, colours and short numbers in one element; its text stays as it is."""
    element.tag = _local(element.tag)
    said = {_local(key): value for key, value in element.attrib.items()}
    if (own := said.pop("id", None)) in referred:
        said["id"] = f"{name}-{own}"
    for key, value in said.items():
        value = re.sub(r"#([a-z][\w-]*)", rf"#{name}-\1", value)
        value = re.sub(r"#0a0b[0-9a-f]{2}", lambda match: colours[_PLACEHOLDERS[match[0]]], value)
        value = re.sub(r"font-family: [^;]*;? ?", "", value) if key == "style" else value
        said[key] = " ".join(_NUMBER.sub(_shorter, value).split()) if key in _MEASURES else value
    if said.get("transform", "").startswith("rotate(-0 "):
        del said["transform"]
    element.attrib.clear()
    element.attrib.update(said)
    if element.tag not in ("text", "title"):
        element.text = None
    element.tail = None


def _shorter(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _local(name: str) -> str:
    return name.rpartition("}")[2]
