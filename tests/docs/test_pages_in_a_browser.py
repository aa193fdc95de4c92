"""The built documentation in a real browser: for axe, on a phone, and without scripts."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver

from tests.browser import MISSING, chromium, look
from tests.docs.pages import DOCS, ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

pytest.importorskip("sphinx")
AXE = Path(pytest.importorskip("axe_playwright_python").__file__).parent / "axe.min.js"
SERIOUS = ("serious", "critical")
RUN = """axe.run(document, { resultTypes: ['violations'] }).then((results) => arguments[0](results.violations.map(
  (item) => [item.id, item.impact, item.nodes[0].html.slice(0, 120)])))"""
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--nitpicky", "--quiet", "-b", "html"]
    variables = os.environ | {"DOCS_VERSIONS": "0.1 dev"}
    subprocess.run([*command, str(DOCS), str(folder)], cwd=ROOT, env=variables, check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_script_timeout(60)
        yield driver


@pytest.mark.parametrize(("width", "is_dark"), [(390, False), (1280, True)])
def test_axe_finds_nothing_serious_and_no_page_scrolls_sideways(
    built: Path, browser: WebDriver, width: int, is_dark: bool
) -> None:
    look(browser, width, dark=is_dark)
    pages = sorted(built.rglob("*.html"))
    wide, found = [], defaultdict[str, list[str]](list)
    for path in pages if width == 390 else pages[::6]:  # colours are the same on all
        page = str(path.relative_to(built))
        browser.get(path.as_uri())
        if browser.execute_script("return document.documentElement.scrollWidth") > width:
            wide.append(page)
        browser.execute_script(AXE.read_text(encoding="utf-8"))
        for name, impact, html in browser.execute_async_script(RUN):
            found[name] += [f"{page}: {html}"] if impact in SERIOUS else []
    assert not wide
    assert not {name: [*places[:3], len(places)] for name, places in found.items() if places}
