"""How long every figure of a report takes, and how large it is, for studies of 8 and of 500 trials.

python benchmarks/figures.py: prints it; a few seconds.
"""

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from autotune.report.figures.canvas import figure_style, page_svg  # noqa: E402
from autotune.report.pictures import FIGURES, pictures  # noqa: E402
from tests.report.figures.studies import many  # noqa: E402


def main() -> None:
    """A line a figure: seconds (of the wall, and of the processor) and kilobytes."""
    pictures(many(8))  # matplotlib itself and its fonts
    for number in (8, 500):
        facts = many(number)
        whole = time.perf_counter(), time.process_time()
        made = pictures(facts)
        seconds, busy = time.perf_counter() - whole[0], time.process_time() - whole[1]
        size = sum(len(item.svg.encode()) for item in made) / 1000
        print(f"{number} trials: {seconds:.2f} s ({busy:.2f} s of the processor), {size:.0f} kB")
        with figure_style():
            for draw in FIGURES:
                begun = time.perf_counter()
                if (drawn := draw(facts)) is not None:
                    svg = page_svg(drawn)
                    print(f"  {drawn.name:<22}{time.perf_counter() - begun:.2f} s {len(svg.encode()) / 1000:6.0f} kB")


if __name__ == "__main__":
    main()
