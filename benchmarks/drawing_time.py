"""How long every figure of a report takes, and how large it is, for studies of 8 and of 500 trials.

python benchmarks/drawing_time.py: prints it; a few seconds.
"""

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from autotune.report.figures import figures, loss_curves, search_progress, speed_against_memory  # noqa: E402
from tests.report.many import many  # noqa: E402


def main() -> None:
    """A line a figure: seconds (of the wall, and of the processor) and kilobytes."""
    figures(many(8))  # Jinja and the templates
    for number in (8, 500):
        facts = many(number)
        whole = time.perf_counter(), time.process_time()
        made = figures(facts)
        seconds, busy = time.perf_counter() - whole[0], time.process_time() - whole[1]
        size = sum(len(item.svg.encode()) for item in made) / 1000
        print(f"{number} trials: {seconds:.2f} s ({busy:.2f} s of the processor), {size:.0f} kB")
        for draw in (speed_against_memory, search_progress, loss_curves):
            begun = time.perf_counter()
            if (figure := draw(facts)) is not None:
                seconds = time.perf_counter() - begun
                print(f"  {figure.name:<22}{seconds:.2f} s {len(figure.svg.encode()) / 1000:6.0f} kB")


if __name__ == "__main__":
    main()
