"""Sphinx's settings: MyST pages, the API from its docstrings, and pages made from the code at every build."""

import html
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import generated  # noqa: E402  (found by the line above)
from docutils import nodes  # noqa: E402

import autotune  # noqa: E402

project = "autotune"
author = "the authors of autotune"
version = release = autotune.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_static_path = ["_static"]
html_extra_path = ["llms.txt"]
html_css_files = ["site.css"]
html_baseurl = os.environ.get("DOCS_URL", "")  # of this version; versions.py sets both variables
templates_path = ["_templates"]
_sidebar = ("brand", "search", "scroll-start", "navigation", "scroll-end")
html_sidebars = {"**": [*(f"sidebar/{part}.html" for part in _sidebar), "versions.html"]}
html_context = {
    "versions": os.environ.get("DOCS_VERSIONS", "").split(),
    "current": html_baseurl.rstrip("/").rpartition("/")[2],
}
html_title = f"autotune {release}"
CARD = "The report of a search: the speed-up over your own settings, and what to check"
html_show_sphinx = html_show_sourcelink = html_show_copyright = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
default_role = "code"
smartquotes_action = "qe"  # not dashes: options begin with two
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Types in signatures: those of other libraries have no pages here, and our own inner nouns have none on purpose.
nitpick_ignore_regex = [("py:(class|obj)", ".*")]


def _as_rst(*told: Any) -> None:
    """Docstrings are plain text: code stands between backticks, whatever follows; a star is a star; names of fields are bold.

    Sections of Google's style (Args, Returns, Raises) become lists.
    """
    lines: list[str] = told[-1]
    text = re.sub(r"`([^`]+)`", r":code:`\1`\\ ", "\n".join(_lists(lines)).replace("*", "\\*").replace("|", "\\|"))
    text = re.sub(r"(\w_)(?=\W|$)", r"\1\\ ", text)
    names = r"(^(?:- )?|[.;]\s+)([A-Za-z]\w*(?:, [a-z]\w*)*): "
    lines[:] = re.sub(names, r"\1**\2**: ", text, flags=re.MULTILINE).split("\n")


def _lists(lines: list[str]) -> Iterator[str]:
    in_section = False
    for line in lines:
        if line in ("Args:", "Returns:", "Raises:"):
            in_section = True
            yield from (line.rstrip(":"), "")
        elif in_section and line.startswith("    "):
            yield f"  {line.strip()}" if line.startswith("        ") else f"- {line.strip()}"
        else:
            in_section = in_section and not line.strip()
            yield line


def _meta(_app: Any, page: str, _template: str, context: dict[str, Any], tree: Any) -> None:
    """A page as messengers and search engines show it.

    The page of missing ones is served at any address, so its links start at the version's.
    """
    paragraphs = (node.astext() for node in tree.findall(nodes.paragraph)) if tree else iter(())
    text = " ".join(next(paragraphs, "").split())
    title = html.unescape(re.sub("<.*?>", "", context.get("title", project)))
    tags = {"name": {"description": text, "twitter:card": "summary_large_image"}}
    tags["property"] = {"og:type": "website", "og:site_name": project, "og:title": title, "og:description": text}
    if html_baseurl:
        tags["property"] |= {"og:image": f"{html_baseurl}_static/card.png", "og:image:alt": CARD}
    lines = [
        f'<meta {kind}="{name}" content="{html.escape(content)}">'
        for kind, contents in tags.items()
        for name, content in contents.items()
    ]
    base = [f'<base href="{html_baseurl}">'] if page == "404" and html_baseurl else []
    context["metatags"] = "\n".join([context.get("metatags", ""), *base, *lines])


def _for_screen_readers(app: Any, error: Exception | None) -> None:
    """Levels for the headings of the contents, tables that scroll by keyboard, and parameters of a long signature as lines.

    Sphinx makes a list without terms of these.
    """
    for path in Path(app.outdir).rglob("*.html") if error is None else ():
        text = path.read_text(encoding="utf-8")
        better = text.replace('role="heading">', 'role="heading" aria-level="2">')
        better = better.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
        better = re.sub(
            r"<dl>\n((?:<dd>.*</dd>\n)+)</dl>",
            lambda match: (
                f'<div class="parameters">\n{match[1].replace("<dd>", "<div>").replace("</dd>", "</div>")}</div>'
            ),
            better,
        )
        if better != text:
            path.write_text(better, encoding="utf-8")


def setup(app: Any) -> None:
    """What Sphinx calls first."""
    app.connect("builder-inited", lambda app: generated.write(HERE))
    app.connect("autodoc-process-docstring", _as_rst)
    app.connect("html-page-context", _meta)
    app.connect("build-finished", _for_screen_readers)
