"""Style of every figure: colours by what they mean, and matplotlib's SVG adapted to a page.

draw(result) ──matplotlib, placeholder colours──> SVG ──┬──> page: colours are the page's CSS variables
                                                       └──> file of its own: real colours, its name above it
"""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from autotune.report.templates import text_of

ROLES = dict(re.findall(r"--(\w+): light-dark\((#\w{6})", text_of("palette.css")))
"""What a colour means -> the light colour itself, for files of their own. On a page it is the CSS variable of that name."""

_PLACEHOLDERS = {f"#0a0b{at:02x}": role for at, role in enumerate(ROLES)}
_COLOURS = {role: colour for colour, role in _PLACEHOLDERS.items()}
INK, MUTED, GRID, PAPER = (_COLOURS[role] for role in ("ink", "muted", "grid", "paper"))
BEST, BASELINE, BAD = (_COLOURS[role] for role in ("best", "baseline", "bad"))
PARTS = [_COLOURS[f"p{number}"] for number in range(1, 7)]
ACCENT = PARTS[2]
"""Colours to draw with: placeholders, each of which is replaced."""

WIDTH, HEIGHT = 5.0, 3.4
"""Inches: on a phone's width the text has its nominal size."""

TEXT = 11.5
"""Points of all text."""

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": TEXT,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": TEXT,
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "autotune",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": TEXT,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": TEXT,
}
_FONT = "font-family: system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; stroke-linejoin: round"
_MEASURES = frozenset(("d", "x", "y", "width", "height", "transform"))
_REFERENCE = re.compile(r"#([\w-]+)")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")


@dataclass(frozen=True)
class Drawing:
    """One drawn figure; title and caption are plain text."""

    name: str  # for links, ids and files
    title: str
    caption: str
    figure: Any  # matplotlib's
    file_title: str = ""  # in a file of its own


@contextlib.contextmanager
def figure_style() -> Iterator[None]:
    """Draw and write every figure inside this: the user's matplotlib settings do not count, and all text is plain text."""
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's own fonts have it
        yield


def new_figure(
    height: float = HEIGHT, width: float = WIDTH, layout: Literal["constrained"] | None = "constrained"
) -> Any:
    """An empty figure of this size in inches, outside of pyplot's global state."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasSVG(figure)
    return figure


def legend_below(figure: Any, columns: int, **more: Any) -> None:
    """The names of what is drawn, below the figure, where there are any."""
    if any(axes.get_legend_handles_labels()[0] for axes in figure.axes) or more:
        figure.legend(loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=1.2, **more)


def page_svg(drawing: Drawing, titles: Mapping[str, str] | None = None) -> str:
    """An `<svg>` element for a page: it takes the page's colours and width, and its ids begin with the figure's name.

    titles: link of a mark -> what it says on hovering.
    """
    return _svg(drawing, {role: f"var(--{role})" for role in ROLES}, titles or {}, is_file=False)


def file_svg(drawing: Drawing, title: str) -> str:
    """A whole SVG file: the same drawing in real colours on white, with this title above it."""
    drawing.figure.suptitle(title, fontsize="medium")
    drawing.figure.set_facecolor(PAPER)
    return _svg(drawing, ROLES, {}, is_file=True)


def _svg(drawing: Drawing, colours: dict[str, str], titles: Mapping[str, str], is_file: bool) -> str:
    content = io.StringIO()
    options = {
        "facecolor": PAPER if is_file else "none",
        "metadata": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    }
    drawing.figure.savefig(content, format="svg", **options)
    root = ElementTree.fromstring(content.getvalue())
    _shrink(root)
    references = {
        name for element in root.iter() for value in element.attrib.values() for name in _REFERENCE.findall(value)
    }
    for element in root.iter():
        _adapt(element, drawing.name, references, colours)
    for link in root.iter("a"):
        href = link.attrib.pop("href")
        if is_file:
            link.tag = "g"
        else:
            link.attrib["href"] = href
            title = ElementTree.SubElement(link, "title")
            title.text = titles.get(href, "")
    if not is_file:
        del root.attrib["width"], root.attrib["height"]
    role = "img" if next(root.iter("a"), None) is None else "group"  # links in an image are not reachable
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "role": role, "aria-label": drawing.title, "style": _FONT}
    title = ElementTree.Element("title")
    title.text = drawing.title
    root.insert(0, title)
    return ElementTree.tostring(root, encoding="unicode")


def _shrink(root: Any) -> None:
    """Remove metadata and the style sheet (it would apply to the whole page), and move a style that a group shares up."""
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


def _adapt(element: Any, name: str, references: set[str], colours: dict[str, str]) -> None:
    """Ids, colours and short numbers in one element; its text stays as it is."""
    element.tag = _local(element.tag)
    attributes = {_local(key): value for key, value in element.attrib.items()}
    if (id := attributes.pop("id", None)) in references:
        attributes["id"] = f"{name}-{id}"
    for key, value in attributes.items():
        value = value if element.tag == "a" else re.sub(r"#([a-z][\w-]*)", rf"#{name}-\1", value)
        value = re.sub(r"#0a0b[0-9a-f]{2}", lambda match: colours[_PLACEHOLDERS[match[0]]], value)
        value = re.sub(r"font-family: [^;]*;? ?", "", value) if key == "style" else value
        attributes[key] = " ".join(_NUMBER.sub(_shorter, value).split()) if key in _MEASURES else value
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    element.attrib.clear()
    element.attrib.update(attributes)
    if element.tag not in ("text", "title"):
        element.text = None
    element.tail = None


def _shorter(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def _local(name: str) -> str:
    return name.rpartition("}")[2]
