"""Pictures of a study's page as people see it: report-phone.png and report-desktop.png beside it, in light and dark.

    python benchmarks/screenshots.py reports/gpt2-mini-causal-lm-gb48-cpu [FOLDER_FOR_THE_PICTURES]

Writes the study's report again and opens it in headless Chromium; on the left the page is light, on the right dark.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from autotune.commands.result import TuningResult
from tests.browser import chromium, look, picture

SCREENS = {"phone": 390, "desktop": 1280}
"""Width in CSS pixels."""

TALLEST = 9000
"""CSS pixels of a page that a picture shows at the most."""


def main() -> None:
    study = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else study
    page = (TuningResult.load(study).save(study) / "report.html").resolve()
    with tempfile.TemporaryDirectory() as scratch, chromium(Path(scratch) / "profile") as browser:
        for name, width in SCREENS.items():
            shots = []
            for dark in (False, True):
                look(browser, width, dark=dark)
                browser.get(page.as_uri())
                height = browser.execute_script("return document.documentElement.scrollHeight")
                look(browser, width, min(height, TALLEST), dark)
                shot = Path(scratch) / f"{name}-{dark}.png"
                picture(browser, shot)
                shots.append(Image.open(shot).convert("RGB"))
            beside = Image.new("RGB", (sum(shot.width for shot in shots), max(shot.height for shot in shots)))
            for place, one in enumerate(shots):
                beside.paste(one, (place * width, 0))
            path = folder / f"report-{name}.png"
            beside.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)
            print(f"{path}: {beside.width} x {beside.height}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
