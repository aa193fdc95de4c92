"""Headless Chromium for pages: one that says what it asked for and what it complained of."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
"""Where Debian's packages `chromium` and `chromium-driver` put them."""

MISSING = "" if CHROMIUM.exists() and DRIVER.exists() else f"needs {CHROMIUM} and {DRIVER}"

_QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


@contextmanager
def chromium(profile: Path) -> Iterator[WebDriver]:
    """A browser of its own with this new user data folder, ended afterwards with its driver."""
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*_QUIET, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


def complaints(browser: WebDriver) -> list[str]:
    """What stands in the console since the last time it was asked."""
    return [f"{entry['level']}: {entry['message']}" for entry in browser.get_log("browser")]


def requested(browser: WebDriver) -> list[str]:
    """The addresses that pages asked for since the last time, in their order."""
    told = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [item["params"] for item in told if item["method"] == "Network.requestWillBeSent"]
    pages = [item for item in sent if not item["documentURL"].startswith("chrome")]  # not the browser's own first tab
    return [url for page in pages if not (url := page["request"]["url"]).startswith("data:")]


def look(browser: WebDriver, width: int, height: int = 900, dark: bool = False, scale: float = 1.0) -> None:
    """See the page as a screen of so many CSS pixels does, in light or dark."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def picture(browser: WebDriver, path: Path) -> None:
    """Write a PNG of what is seen."""
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]))
