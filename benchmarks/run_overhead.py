"""Overhead of `autotune run` in the start of programs that use no Trainer.

python benchmarks/run_overhead.py [N]: N rounds (100) on an otherwise idle machine. In each round every program starts with the
hook and without it, in an order that changes; prints a table and writes it to reports/.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import made_line  # noqa: E402

from autotune.commands.run.exchange import Instructions  # noqa: E402
from autotune.commands.run.rerun import Command  # noqa: E402

TARGET_S = 0.020
PROGRAMS = {"no imports": "pass", "json, argparse, asyncio": "import json, argparse, asyncio", "numpy": "import numpy"}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory(prefix="run-overhead-") as folder:
        hooked = Command([], dict(os.environ)).hooked(Path(folder), Instructions())
        lines = [
            "# Programs without a Trainer below `autotune run`",
            "",
            made_line(),
            "",
            f"{rounds} interleaved rounds.",
            "",
        ]
        lines += ["| program | alone | with the hook | more | target |", "| --- | ---: | ---: | ---: | --- |"]
        lines += [row(name, code, rounds, hooked) for name, code in PROGRAMS.items()]
    table = "\n".join(lines) + "\n"
    print(table)
    report = ROOT / "reports" / "run_overhead.md"
    report.parent.mkdir(exist_ok=True)
    report.write_text(table, encoding="utf-8")


def row(name: str, code: str, rounds: int, hooked: dict[str, str]) -> str:
    """Medians in milliseconds, and the median of the rounds' differences with its 95% interval by order statistics."""
    alone, below = [], []
    for _ in range(rounds):
        sides = [(dict(os.environ), alone), (hooked, below)]
        for environment, seconds in random.sample(sides, 2):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], env=environment, check=True)
            seconds.append(time.perf_counter() - begun)
    more = sorted(with_hook - without for with_hook, without in zip(below, alone, strict=True))
    margin = round(0.98 * rounds**0.5)
    low, high = more[max(0, rounds // 2 - margin)], more[min(rounds - 1, rounds // 2 + margin)]
    median = statistics.median(more)
    verdict = "met" if high < TARGET_S else "missed"
    numbers = [f"{1000 * statistics.median(seconds):.1f} ms" for seconds in (alone, below)]
    interval = f"{1000 * median:.1f} ms ({1000 * low:.1f} to {1000 * high:.1f})"
    return f"| {name} | {' | '.join(numbers)} | {interval} | under {1000 * TARGET_S:.0f} ms: {verdict} |"


if __name__ == "__main__":
    main()
