"""The page in a real browser: a search from its form to a comparison, by keyboard, for all eyes, and asking nobody else."""

from collections.abc import Iterator
from pathlib import Path

import axe_playwright_python
import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from autotune.commands.result import TuningResult
from tests.browser import MISSING, chromium, complaints, look, requested
from tests.report.studies import HOSTILE, hostile
from tests.service import application
from tests.service.application import wait_until
from tests.service.searches import Replaying
from tests.service.seeded import REAL, left, page_service, seed
from tests.service.servers import Server, serving

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_script_timeout(PATIENCE_S)
        yield driver


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Replaying:
    return Replaying(tmp_path_factory.mktemp("replaying") / "site")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, replaying: Replaying) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), variables=replaying.environment) as server:
        yield server


def text_of(browser: WebDriver, selector: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)  # type: ignore[no-any-return]


def press(browser: WebDriver, text: str) -> None:
    """Click on a button or link, as soon as it is there: an event may be replacing it."""
    path = f"//button[normalize-space()='{text}'] | //a[normalize-space()='{text}']"
    ignored = [NoSuchElementException, StaleElementReferenceException]
    WebDriverWait(browser, PATIENCE_S, 0.1, ignored).until(
        lambda _: browser.find_element(By.XPATH, path).click() or True
    )


def sign_in(browser: WebDriver, url: str, token: str) -> None:
    browser.delete_all_cookies()
    browser.get(f"{url}/login")
    browser.find_element(By.ID, "token").send_keys(token, Keys.ENTER)
    wait_until(lambda: text_of(browser, "h1") == "Searches")


def submit(browser: WebDriver, url: str, name: str) -> str:
    """Start a search by its form: its address."""
    browser.get(f"{url}/new")
    fields = {"model": "bert-mini", "global_batch_size": "16", "sequence_length": "8", "n_trials": "4", "name": name}
    for field, value in (fields | {"more": "{space: quick, sampler: random, no_history: true}"}).items():
        browser.find_element(By.ID, field).send_keys(value)
    press(browser, "Check")
    wait_until(lambda: "The request is valid." in text_of(browser, "#fine"))
    press(browser, "Start the search")
    wait_until(lambda: "/searches/" in browser.current_url)
    return browser.current_url


def test_a_search_from_its_form_to_its_report(browser: WebDriver, server: Server, replaying: Replaying) -> None:
    """Nothing is reloaded by hand: what happens is seen by events, and only states and a new best are spoken."""
    look(browser, 1280)
    complaints(browser)
    requested(browser)
    sign_in(browser, server.url, server.token)
    replaying.hold()
    first = submit(browser, server.url, "first")
    browser.execute_script(
        "window.spoken = []; window.same = document.querySelector('#live');"
        "new MutationObserver(() => spoken.push(voice.textContent)).observe(voice, { childList: true });"
    )
    wait_until(lambda: "(baseline)" in text_of(browser, ".sub"))
    browser.execute_script("document.getElementById('duplicate').focus()")
    browser.find_element(By.ID, "pause").send_keys(Keys.ENTER)  # nothing moves while it is paused
    browser.execute_script("document.getElementById('duplicate').focus()")
    replaying.release()
    wait_until(lambda: server.http.get(f"/searches/{first.rpartition('/')[2]}").json()["ended_at"])
    assert "Running" in text_of(browser, ".sub")
    press(browser, "Pause updates")
    wait_until(lambda: "Done" in text_of(browser, ".sub"))
    wait_until(lambda: browser.execute_script("return same.isConnected && window.spoken.at(-1)?.startsWith('Done.')"))
    wait_until(lambda: browser.execute_script("return document.getElementById('pause').hidden"))
    wait_until(lambda: "baseline" in text_of(browser, ".trials"))
    press(browser, "Open the report")
    wait_until(lambda: text_of(browser, "#details h2") == "Details")
    assert browser.execute_script("return window.origin") == "null"
    browser.find_element(By.ID, "theme").click()  # its script runs
    assert complaints(browser) == []
    assert {url.split("/")[2] for url in requested(browser)} == {server.url.split("/")[2]}


def test_a_search_that_is_marked_stays_so_when_another_one_is_submitted(browser: WebDriver, tmp_path: Path) -> None:
    service = page_service(tmp_path)
    done, token = service.ended(), service.token("anna")
    with application.serving(service.app) as url:
        look(browser, 1280)
        sign_in(browser, url, token)
        browser.find_element(By.ID, f"pick-{done.id}").click()
        other = service.queued()
        wait_until(lambda: text_of(browser, f"#row-{other.id}"))
        assert browser.find_element(By.ID, f"pick-{done.id}").is_selected()
        assert browser.find_element(By.ID, "compare").is_enabled()


def test_all_is_done_by_keyboard_alone(browser: WebDriver, server: Server) -> None:
    look(browser, 1280)
    sign_in(browser, server.url, server.token)
    browser.get(f"{server.url}/new")

    def tab_to(element_id: str) -> None:
        for _ in range(40):
            browser.switch_to.active_element.send_keys(Keys.TAB)
            focused = browser.switch_to.active_element
            outline = browser.execute_script("return getComputedStyle(arguments[0]).outlineStyle", focused)
            assert outline != "none", focused.get_attribute("outerHTML")
            if element_id in (focused.get_attribute("id"), focused.text):
                return
        pytest.fail(f"{element_id} is not reached")

    tab_to("Skip to the content")
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    tab_to("model")
    browser.switch_to.active_element.send_keys("no-such-model")
    tab_to("global_batch_size")
    browser.switch_to.active_element.send_keys("8", Keys.ENTER)
    wait_until(lambda: "corrected in 1 place" in text_of(browser, "#problem"))
    assert browser.switch_to.active_element.get_attribute("id") == "problem"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait_until(lambda: browser.switch_to.active_element.get_attribute("id") == "model")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["real", "hostile"])
def test_every_view_can_be_read_by_all(browser: WebDriver, tmp_path: Path, kind: str) -> None:
    """axe finds nothing in light and dark, on a narrow phone and a desktop; nothing is wider; hostile texts do nothing."""
    service = page_service(tmp_path)
    if kind == "real":
        ids = seed(service, study := TuningResult.load(REAL), left(study, tmp_path / "report"))
    else:
        ids = seed(
            service, hostile(), {"report.html": HOSTILE.encode(), "trial-2.log": HOSTILE.encode()}, HOSTILE, HOSTILE
        )
        service.app.state.devices.cards = {"cpu": HOSTILE}
    token = service.token("anna", "admin")
    with application.serving(service.app) as url:
        sign_in(browser, url, token)
        complaints(browser)
        requested(browser)
        wanted = [
            "/",
            "/new",
            f"/new?from={ids['queued']}",
            "/devices",
            "/tokens",
            f"/compare?search={ids['done']}&price=2",
        ]
        for path in [*wanted, *(f"/searches/{search_id}" for search_id in ids.values()), "/login"]:
            browser.get(url + path)
            for width in (320, 1280):
                for dark in (False, True):
                    look(browser, width, 900, dark)
                    where = f"{path} {width} {'dark' if dark else 'light'}"
                    assert browser.execute_script("return document.documentElement.scrollWidth") <= width, where
                    browser.execute_script(AXE)
                    found = browser.execute_async_script(
                        "const done = arguments[1];"
                        "axe.run({ runOnly: arguments[0] }).then((all) => done(all.violations.map("
                        "(each) => [each.id, each.impact, ...each.nodes.map((node) => node.html)])));",
                        RULES,
                    )
                    assert found == [], where
            assert browser.title != "ran", path
        assert complaints(browser) == []
        assert {address.split("/")[2] for address in requested(browser)} == {url.split("/")[2]}
