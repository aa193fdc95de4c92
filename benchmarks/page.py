"""How long the page of a large study takes to make, the first time in a process, and how large it is.

python benchmarks/page.py [TRIALS] [RUNS] [FILE]: 500 trials, five runs, each in an interpreter of its own; into
reports/page.md; half a minute, on an otherwise idle machine.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from machine import write_table  # noqa: E402

from autotune.report.html import page  # noqa: E402
from tests.report.studies import large  # noqa: E402

ONCE = "--once"
MOST_S, MOST_BYTES = 3.0, 2_000_000
"""What a page of 500 trials may take."""


def once(trials: int) -> None:
    """Make the page and print its seconds, those of the processor, and its bytes."""
    facts = large(trials)
    begun, busy = time.perf_counter(), time.process_time()
    text = page(facts)
    print(time.perf_counter() - begun, time.process_time() - busy, len(text.encode()))


def lines_of(trials: int, runs: list[list[float]]) -> list[str]:
    """The table. runs: of each the seconds, the processor's seconds, and the bytes of the page."""
    seconds, busy, sizes = ([*column] for column in zip(*runs, strict=True))
    met = max(seconds) < MOST_S and max(sizes) < MOST_BYTES
    cells = [trials, len(runs), f"{median(seconds):.2f} s", f"{max(seconds):.2f} s", f"{median(busy):.2f} s"]
    cells += [f"{max(sizes):,.0f} bytes", f"under {MOST_S:g} s and {MOST_BYTES:,} bytes: {'met' if met else 'missed'}"]
    return [
        "| trials | runs | median | longest | of a processor | size | target |",
        "|---|---|---|---|---|---|---|",
        f"| {' | '.join(map(str, cells))} |",
        "",
        "Every figure, and every trial with its columns and the ends of logs; each run in an interpreter of its own, loading of",
        "autotune and pandas not included.",
    ]


def main(trials: int = 500, runs: int = 5, path: Path = ROOT / "reports" / "page.md") -> None:
    """Measure and write the table."""
    command = [sys.executable, __file__, ONCE, str(trials)]
    told = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(runs)]
    found = [[float(number) for number in text.split()] for text in told]
    write_table(path, "How long a page takes, and how large it is", lines_of(trials, found))


if __name__ == "__main__":
    if sys.argv[1:2] == [ONCE]:
        once(int(sys.argv[2]))
    else:
        main(*map(int, sys.argv[1:3]), *map(Path, sys.argv[3:]))
