"""README and docs as texts, with what they include and the anchors that one can link to."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
}


@cache
def docs_module(name: str) -> ModuleType:
    """A program of docs/, which is outside any package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def whole(path: Path) -> str:
    """The text of a page with everything that it includes."""
    if path.parent.name == "_generated":
        return str(docs_module("generated").PAGES[path.name]())
    text = path.read_text(encoding="utf-8")
    return re.sub(r"```\{include\} (\S+)\n.*?```", lambda found: whole(path.parent / found[1]), text, flags=re.DOTALL)


@cache
def anchors(path: Path) -> set[str]:
    """What can be linked to: headings in small letters, without signs, dashes for blanks."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", whole(path), flags=re.DOTALL | re.MULTILINE), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
