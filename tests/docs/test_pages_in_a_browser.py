"""The built documentation in a real browser: for axe, on a phone, and without scripts."""

import subprocess
import sys
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
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--nitpicky", "--quiet", "-b", "html"]
    subprocess.run([*command, str(DOCS), str(folder)], cwd=ROOT, check=True, timeout=600)
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
    found: dict[str, object] = {}
    for path in sorted(built.rglob("*.html")):
        page = str(path.relative_to(built))
        browser.get(path.as_uri())
        if (wide := browser.execute_script("return document.documentElement.scrollWidth")) > width:
            found[f"{page}, width"] = wide
        browser.execute_script(AXE.read_text(encoding="utf-8"))
        violations = browser.execute_async_script(
            "axe.run(document, { resultTypes: ['violations'] }).then((results) => arguments[0](results.violations))"
        )
        for item in violations:
            if item["impact"] in SERIOUS:
                found[f"{page}, {item['id']}"] = [node["html"][:120] for node in item["nodes"][:2]]
    assert not found


def test_everything_can_be_read_without_scripts(built: Path, browser: WebDriver) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look(browser, 1280)
        for page in PAGES:
            browser.get((built / f"{page}.html").as_uri())
            nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
            words = sum(len(str(node.get("name", {}).get("value", "")).split()) for node in nodes)
            text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
            assert words >= len(text.split()) / 2, page
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
