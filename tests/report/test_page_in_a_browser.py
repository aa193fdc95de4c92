"""The page in a real browser: it asks for nothing, complains of nothing, sorts, filters, copies, and runs nothing foreign."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python import base as axe_base
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from autotune.commands.result import TuningResult
from autotune.report import html
from autotune.report.figures import Figure
from autotune.report.html import page
from autotune.study.result import SearchResult
from tests.browser import MISSING, chromium, complaints, look, requested
from tests.report.studies import HOSTILE

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

REAL = Path(__file__).parents[1] / "data" / "studies" / "gpt2-mini-600MiB"
"""A real search on a CPU whose trial 4 ran out of memory."""
PATIENCE_S = 60.0
AXE = Path(axe_base.__file__).parent / "axe.min.js"
"""The checker of accessibility by itself: Selenium runs it, whatever the page's policy forbids."""
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_script_timeout(PATIENCE_S)
        yield driver


@pytest.fixture(scope="module")
def real_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """report.html of the real study of a CPU, in its folder."""
    return TuningResult.load(REAL).save(tmp_path_factory.mktemp("report")) / "report.html"


@pytest.fixture
def opened(browser: WebDriver, real_page: Path) -> WebDriver:
    """The real study's page, just opened as a file on a desktop."""
    look(browser, 1280)
    complaints(browser)
    requested(browser)
    browser.get(real_page.as_uri())
    return browser


@pytest.fixture
def large_page(browser: WebDriver, tmp_path: Path, large_facts: SearchResult) -> WebDriver:
    path = tmp_path / "large.html"
    path.write_text(page(large_facts), encoding="utf-8")
    browser.get(path.as_uri())
    return browser


def column(browser: WebDriver, name: str) -> list[str]:
    """Whole values of a column, of the rows that are shown, from top to bottom."""
    return browser.execute_script(  # type: ignore[no-any-return]
        """const heads = [...document.querySelectorAll('#trials thead th')];
        const place = heads.findIndex((head) => head.dataset.name === arguments[0]);
        return [...document.querySelectorAll('#trials tbody tr')].filter((row) => row.offsetParent !== null)
          .map((row) => row.cells[place]).map((cell) => cell.dataset.value ?? (cell.firstChild?.textContent ?? '').trim());""",
        name,
    )


def head(browser: WebDriver, name: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, f"#trials thead th[data-name={name}]")


def unfold(browser: WebDriver, key: str) -> None:
    """Open what is folded in the details of this id, and those around it."""
    for summary in browser.find_elements(By.XPATH, f"//*[@id='{key}']/ancestor-or-self::details[not(@open)]/summary"):
        summary.click()


def show_every_column(browser: WebDriver) -> None:
    unfold(browser, "every-trial")
    browser.find_element(By.CSS_SELECTOR, ".columns summary").click()
    for box in browser.find_elements(By.CSS_SELECTOR, "#columns input:not(:checked)"):
        box.click()


def unfold_all(browser: WebDriver) -> None:
    browser.execute_script("document.querySelectorAll('details').forEach((details) => { details.open = true; })")


def test_the_page_complains_of_nothing_and_asks_for_nothing(opened: WebDriver, real_page: Path) -> None:
    unfold_all(opened)
    head(opened, "samples_per_second").find_element(By.TAG_NAME, "button").click()
    assert complaints(opened) == []
    assert requested(opened) == [real_page.as_uri()]


def test_the_table_sorts_by_every_column(opened: WebDriver) -> None:
    """Each heading twice: numbers as numbers, upwards and downwards, what is missing last in both."""
    show_every_column(opened)
    sorts = opened.execute_script(
        """const heads = [...document.querySelectorAll('#trials thead th')];
        return heads.flatMap((head, place) => [1, 2].map(() => {
          head.querySelector('button').click();
          const cells = [...document.querySelectorAll('#trials tbody tr')].map((row) => row.cells[place]);
          const values = cells.map((cell) => cell.dataset.value ?? (cell.firstChild?.textContent ?? '').trim());
          return { name: head.dataset.name, numeric: head.classList.contains('n'), order: head.ariaSort, values };
        }));"""
    )
    assert len(sorts) == 2 * len(opened.find_elements(By.CSS_SELECTOR, "#trials thead th")) > 80
    assert all(first["order"] != second["order"] for first, second in zip(sorts[::2], sorts[1::2], strict=True))
    for shown in sorts:
        values = [value for value in shown["values"] if value]
        assert shown["values"] == values + [""] * (8 - len(values)), f"{shown['name']}: what is missing is last"
        keys = [float(value) for value in values] if shown["numeric"] else [value.casefold() for value in values]
        assert keys == sorted(keys, reverse=shown["order"] == "descending"), shown["name"]  # type: ignore[type-var]
    head(opened, "samples_per_second").find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    (sorted_by,) = opened.find_elements(By.CSS_SELECTOR, "#trials thead th:not([aria-sort=none])")
    assert [sorted_by.get_attribute(name) for name in ("data-name", "aria-sort")] == [
        "samples_per_second",
        "descending",
    ]


def test_the_table_filters_by_text_outcome_and_fit(large_page: WebDriver) -> None:
    unfold(large_page, "every-trial")
    count = large_page.find_element(By.ID, "count")
    words = large_page.find_element(By.ID, "words")
    assert count.text == "500 of 500 trials"
    words.send_keys("BF16 full")
    shown = set(zip(column(large_page, "precision"), column(large_page, "checkpointing"), strict=True))
    assert shown == {("bf16", "full")}
    assert count.text == f"{len(column(large_page, 'number'))} of 500 trials"
    words.send_keys(Keys.CONTROL, "a")
    words.send_keys(Keys.DELETE)
    Select(large_page.find_element(By.ID, "outcome")).select_by_value("out_of_memory")
    assert set(column(large_page, "outcome")) == {"out_of_memory"}
    Select(large_page.find_element(By.ID, "fits")).select_by_value("True")
    assert count.text == "0 of 500 trials"
    Select(large_page.find_element(By.ID, "outcome")).select_by_value("")
    assert set(column(large_page, "fits")) == {"True"}
    assert set(column(large_page, "outcome")) == {"completed"}


def test_columns_come_and_go(opened: WebDriver) -> None:
    unfold(opened, "every-trial")
    assert not head(opened, "step_time_s").is_displayed()
    opened.find_element(By.CSS_SELECTOR, ".columns summary").click()
    for name in ("step time", "outcome"):
        boxes = opened.find_elements(By.CSS_SELECTOR, "#columns label")
        next(box for box in boxes if box.text == name).click()
    assert head(opened, "step_time_s").is_displayed()
    assert not head(opened, "outcome").is_displayed()


@pytest.mark.parametrize("how", ["clipboard", "selection"])
def test_copy_buttons_fill_the_clipboard(opened: WebDriver, real_page: Path, how: str) -> None:
    """Also without navigator.clipboard, as on a page that a browser does not call secure."""
    allowed = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    opened.execute_cdp_cmd("Browser.grantPermissions", allowed)
    if how == "selection":
        opened.execute_script(
            "window.reading = navigator.clipboard;"
            "Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });"
        )
    for key in ("share", "paste-python", "paste-json"):
        if key == "paste-json":
            opened.find_element(By.CSS_SELECTOR, "[for=form-others]").click()
            unfold(opened, key)
        button = opened.find_element(By.CSS_SELECTOR, f"[data-copy={key}]")
        button.click()
        WebDriverWait(opened, PATIENCE_S).until(lambda _, button=button: button.text == "Copied")
        copied = opened.execute_async_script(
            "(window.reading ?? navigator.clipboard).readText().then(arguments[0], (error) => arguments[0](`${error}`))"
        )
        assert copied == opened.find_element(By.ID, key).get_property("textContent")
    assert json.loads(copied) == json.loads((real_page.parent / "best_training_arguments.json").read_text())
    assert complaints(opened) == []


def test_dark_and_light_follow_the_system_until_the_reader_chooses(opened: WebDriver) -> None:
    def dark() -> bool:
        colour = opened.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, colour[4:-1].split(","))) < 3 * 128

    assert not dark()
    look(opened, 1280, dark=True)
    assert dark()
    button = opened.find_element(By.ID, "theme")
    button.click()
    assert (button.text, dark()) == ("Theme: light", False)
    opened.refresh()
    assert (opened.find_element(By.ID, "theme").text, dark()) == ("Theme: light", False)
    opened.find_element(By.ID, "theme").click()
    look(opened, 1280)
    assert (opened.find_element(By.ID, "theme").text, dark()) == ("Theme: dark", True)
    opened.find_element(By.ID, "theme").click()
    assert (opened.find_element(By.ID, "theme").text, dark()) == ("Theme: auto", False)


def test_on_a_phone_the_page_does_not_scroll_sideways(
    browser: WebDriver, tmp_path: Path, large_facts: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Figure(
        "wide", "Wide", "A hint", "A caption", '<svg viewBox="0 0 900 300"><rect width="900" height="300"/></svg>'
    )
    monkeypatch.setattr(html, "figures", lambda facts: [wide])
    path = tmp_path / "page.html"
    path.write_text(page(large_facts), encoding="utf-8")
    look(browser, 320)
    browser.get(path.as_uri())
    unfold_all(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 320
    assert browser.execute_script(
        "const box = document.querySelector('.tall'); return box.scrollWidth > box.clientWidth"
    )


def test_print_takes_three_pages_at_the_most_with_nothing_to_press(opened: WebDriver) -> None:
    pages = base64.b64decode(
        opened.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})["data"]
    )
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b[^s]", pages)) <= 3
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = (
            "return [...document.querySelectorAll('pre')].filter((pre) => pre.checkVisibility()).map((pre) => pre.id)"
        )
        assert opened.execute_script(shown) == ["paste-python"], "the form that is chosen"
        assert not any(button.is_displayed() for button in opened.find_elements(By.TAG_NAME, "button"))
        assert not opened.find_element(By.CSS_SELECTOR, "#details h2").is_displayed()
        unfold_all(opened)
        assert head(opened, "samples_per_second").is_displayed(), "what the reader opened is printed too"
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_mark_leads_to_the_trial_s_row_and_a_failed_one_to_what_it_said(opened: WebDriver) -> None:
    opened.find_element(By.CSS_SELECTOR, ".ranked a[href='#trial-6']").click()
    row = opened.find_element(By.ID, "trial-6")
    WebDriverWait(opened, PATIENCE_S).until(lambda _: row.is_displayed())
    opened.find_element(By.CSS_SELECTOR, "#trials tbody th a").click()
    details = opened.find_element(By.ID, "log-4")
    WebDriverWait(opened, PATIENCE_S).until(lambda _: details.get_property("open"))
    assert "you tried to allocate 4718592 bytes" in details.text


def test_what_to_paste_is_on_the_first_screen(opened: WebDriver) -> None:
    look(opened, 1280, 800)
    top, bottom = opened.execute_script(
        "const box = document.querySelector('#paste-python').getBoundingClientRect(); return [box.top, box.bottom]"
    )
    assert 0 < top < bottom < 800


@pytest.mark.parametrize(("width", "least"), [(390, 11), (1280, 11)])
def test_no_text_is_too_small_to_read(opened: WebDriver, width: int, least: int) -> None:
    look(opened, width)
    opened.refresh()
    unfold_all(opened)
    smallest = opened.execute_script(
        """return Math.min(...[...document.querySelectorAll('body *')].filter((element) =>
          [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && element.checkVisibility()
          && !['TITLE', 'SCRIPT', 'STYLE'].includes(element.tagName.toUpperCase())).map((element) =>
          parseFloat(getComputedStyle(element).fontSize) * (element.ownerSVGElement
            ? element.ownerSVGElement.getScreenCTM().a : 1)));"""
    )
    assert smallest >= least - 0.01


@pytest.mark.parametrize(("width", "is_dark"), [(390, True), (1280, False)])
def test_axe_finds_nothing_serious(opened: WebDriver, width: int, is_dark: bool) -> None:
    look(opened, width, dark=is_dark)
    opened.refresh()
    unfold_all(opened)
    opened.execute_script(AXE.read_text(encoding="utf-8"))
    found = opened.execute_async_script(
        "axe.run(document, { resultTypes: ['violations'] }).then((results) => arguments[0](results.violations))"
    )
    serious = [
        (item["id"], [node["html"][:160] for node in item["nodes"][:3]]) for item in found if item["impact"] in SERIOUS
    ]
    assert not serious


def test_everything_can_be_done_with_the_keyboard_alone(opened: WebDriver) -> None:
    """From the top: Tab to the forms, an arrow to the next form, Tab on to its copy button."""
    opened.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    press = ActionChains(opened)

    def active() -> WebElement:
        return opened.switch_to.active_element

    for _ in range(20):
        press.send_keys(Keys.TAB).perform()
        if active().get_attribute("id") == "form-python":
            break
    outline = "return getComputedStyle(document.querySelector('[for=form-python]')).outlineStyle"
    assert opened.execute_script(outline) == "solid", "the label shows where the focus is"
    press.send_keys(Keys.ARROW_RIGHT).perform()
    assert opened.find_element(By.ID, "paste-command").is_displayed()
    assert not opened.find_element(By.ID, "paste-python").is_displayed()
    press.send_keys(Keys.TAB).perform()
    assert active().get_attribute("data-copy") == "paste-command"
    press.send_keys(Keys.ENTER).perform()
    WebDriverWait(opened, PATIENCE_S).until(lambda _: active().text == "Copied")
    reached = set()
    for _ in range(80):
        press.send_keys(Keys.TAB).perform()
        reached.add(active().get_attribute("href") or active().tag_name)
    assert "summary" in reached
    assert any("#trial-" in place for place in reached), "each configuration leads to its row"


def test_without_a_script_the_page_is_whole_and_has_nothing_dead_to_press(opened: WebDriver, real_page: Path) -> None:
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.get(real_page.as_uri())
        assert opened.find_element(By.TAG_NAME, "h1").is_displayed()
        assert not opened.find_element(By.ID, "theme").is_displayed()
        opened.find_element(By.CSS_SELECTOR, "[for=form-yaml]").click()
        assert opened.find_element(By.ID, "paste-yaml").is_displayed()
        assert not opened.find_element(By.ID, "paste-python").is_displayed()
        assert not any(button.is_displayed() for button in opened.find_elements(By.CSS_SELECTOR, "button"))
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_study_full_of_script_shows_it_and_runs_none(browser: WebDriver, tmp_path: Path, hostile_page: str) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(hostile_page, encoding="utf-8")
    look(browser, 1280)
    complaints(browser)
    requested(browser)
    browser.get(path.as_uri())
    unfold_all(browser)
    head(browser, "optimizer").find_element(By.TAG_NAME, "button").click()
    browser.find_element(By.ID, "words").send_keys("<script>")
    assert browser.title.startswith("</script><script>")
    assert browser.title != "ran"
    assert HOSTILE in browser.find_element(By.ID, "environment").text
    assert browser.find_element(By.ID, "count").text.endswith("of 5 trials")
    assert not browser.find_elements(By.CSS_SELECTOR, "body script, img")
    assert complaints(browser) == []
    assert requested(browser) == [path.as_uri()]
