"""How long the page of a large study takes to make, the first time in a process, and how large it is.

python tests/benchmarks/page.py [TRIALS]
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from autotune.report.html import page
from tests.report.studies import large


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    facts = large(trials)
    begun, busy = time.perf_counter(), time.process_time()
    text = page(facts)
    took, worked = time.perf_counter() - begun, time.process_time() - busy
    print(f"{trials} trials: {took:.2f} s ({worked:.2f} s of a processor), {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
