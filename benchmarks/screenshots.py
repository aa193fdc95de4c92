"""Pictures of pages as people see them, in headless Chromium.

    python benchmarks/screenshots.py reports/gpt2-mini-causal-lm-gb48-cpu [FOLDER_FOR_THE_PICTURES]
    python benchmarks/screenshots.py --service docs/images/service
    python benchmarks/screenshots.py --tour docs/images/tour
    python benchmarks/screenshots.py --card docs/_static/card.png
    python benchmarks/screenshots.py --optuna http://localhost:8080/dashboard/studies/1 docs/images/optuna-dashboard.png

Of a study: report-phone.png and report-desktop.png beside it, in light and dark, and its first screen as report-fold.png and
report-fold-dark.png; the report is written again. --service: a picture of each view of the service, with searches of the
recorded study, for a desktop and a phone. On the left a page is light, on the right dark. --tour: README's walk through the
page of a study and the service. --optuna: the dashboard that `optuna-dashboard sqlite:///STUDY/study.db` serves while a search
runs. --card: what messengers show of a link to the documentation, from README's first picture.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune.commands.result import TuningResult  # noqa: E402
from tests.browser import chromium, look, picture  # noqa: E402

SCREENS = {"phone": 390, "desktop": 1280}
"""Width in CSS pixels."""

FOLD = 800
"""CSS pixels of a desktop's page that are on screen without scrolling."""

TALLEST = 9000
"""CSS pixels of a page that a picture shows at the most."""


STUDY = ROOT / "reports" / "gpt2-mini-causal-lm-gb48-cpu"
TOUR = (960, 600)
"""Pixels of a picture of the tour, which shows 1280 x 800 CSS pixels."""


def main() -> None:
    if sys.argv[1] == "--card":
        fold = Image.open(ROOT / "docs" / "images" / "report-fold.png").convert("RGB")
        save(fold.crop((0, 0, 1280, 672)).resize((1200, 630), Image.Resampling.LANCZOS), Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as scratch, chromium(Path(scratch) / "profile") as browser:
        if sys.argv[1] == "--service":
            service(browser, Path(sys.argv[2]), Path(scratch))
        elif sys.argv[1] == "--optuna":
            look(browser, 1280, 1200)
            browser.get(sys.argv[2])
            time.sleep(15)  # its graphs are drawn one after the other
            picture(browser, Path(sys.argv[3]))
        elif sys.argv[1] == "--tour":
            tour(browser, Path(sys.argv[2]), Path(scratch))
        else:
            study = Path(sys.argv[1])
            report(browser, study, Path(sys.argv[2]) if len(sys.argv) > 2 else study, Path(scratch))


def report(browser: WebDriver, study: Path, folder: Path, scratch: Path) -> None:
    """Pictures of a study's page."""
    browser.get((TuningResult.load(study).save(study) / "report.html").resolve().as_uri())
    for name in SCREENS:
        light, dark = shots(browser, name, scratch)
        save(beside(light, dark), folder / f"report-{name}.png")
    for end, image in (("", light), ("-dark", dark)):
        save(image.crop((0, 0, image.width, FOLD)), folder / f"report-fold{end}.png")


def service(browser: WebDriver, folder: Path, scratch: Path) -> None:
    """Pictures of each view of the service."""
    with signed_in(browser, scratch) as views:
        for view, address in views.items():
            browser.get(address)
            for name in SCREENS:
                image = beside(*shots(browser, name, scratch))
                save(image, folder / f"{view}-{name}.webp", quality=30, method=6)


@contextmanager
def signed_in(browser: WebDriver, scratch: Path) -> Iterator[dict[str, str]]:
    """A service with searches in all states: view -> its address, for an administrator."""
    from tests.service import application
    from tests.service.seeded import REAL, left, page_service, seed

    run = page_service(scratch)
    ids = seed(run, study := TuningResult.load(REAL), left(study, scratch / "report"))
    views = {
        "searches": "/",
        "new": f"/new?from={ids['queued']}",
        "running": f"/searches/{ids['running']}",
        "done": f"/searches/{ids['done']}",
        "compare": f"/compare?search={ids['done']}",
        "devices": "/devices",
        "tokens": "/tokens",
    }
    token = run.token("anna", "admin")
    with application.serving(run.app) as url:
        browser.get(f"{url}/login")
        browser.find_element(By.ID, "token").send_keys(token, Keys.ENTER)
        WebDriverWait(browser, 20).until(lambda browser: not browser.current_url.endswith("/login"))
        yield {view: url + path for view, path in views.items()}


def tour(browser: WebDriver, folder: Path, scratch: Path) -> None:
    """The answer, all configurations and their memory on the page of a study; a form, a search that runs and the queue."""
    folder.mkdir(exist_ok=True)

    def frame(name: str) -> None:
        picture(browser, scratch / "shot.png")
        image = Image.open(scratch / "shot.png").convert("RGB").resize(TOUR, Image.Resampling.LANCZOS)
        save(image, folder / f"{name}.png")

    look(browser, SCREENS["desktop"], FOLD)
    browser.get((TuningResult.load(STUDY).save(scratch / "study") / "report.html").resolve().as_uri())
    for name, place in {
        "answer": "body",
        "configurations": "#configurations",
        "memory": "#figure-speed-against-memory",
    }.items():
        browser.execute_script(
            "const place = document.querySelector(arguments[0]); place.open = true; place.scrollIntoView();", place
        )
        frame(f"page-{name}")
    with signed_in(browser, scratch / "service") as views:
        for name in ("new", "running", "searches"):
            browser.get(views[name])
            frame(f"service-{name}")


def shots(browser: WebDriver, name: str, scratch: Path) -> tuple[Image.Image, Image.Image]:
    """The page on this screen, light and dark."""
    images = []
    for dark in (False, True):
        look(browser, SCREENS[name], FOLD, dark)
        height = browser.execute_script("return document.documentElement.scrollHeight")
        look(browser, SCREENS[name], min(height, TALLEST), dark)
        picture(browser, scratch / "shot.png")
        images.append(Image.open(scratch / "shot.png").convert("RGB"))
    return images[0], images[1]


def beside(light: Image.Image, dark: Image.Image) -> Image.Image:
    """Both in one picture."""
    both = Image.new("RGB", (light.width + dark.width, max(light.height, dark.height)))
    both.paste(light, (0, 0))
    both.paste(dark, (light.width, 0))
    return both


def save(image: Image.Image, path: Path, **options: Any) -> None:
    """As PNG of 256 colours, or as WebP."""
    if path.suffix == ".png":
        image, options = (
            image.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE),
            {"optimize": True},
        )
    image.save(path, **options)
    print(f"{path}: {image.width} x {image.height}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
