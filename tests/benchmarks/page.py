"""How long the page of a large study takes to make, and how large it is; prints seconds and bytes.

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
    begun = time.perf_counter()
    text = page(facts)
    print(f"{trials} trials: {time.perf_counter() - begun:.2f} s, {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
