"""Errors of composed steps, data waits, last steps and clocks on simulated GPUs, before and after they were mended.

python benchmarks/stream.py: trains the stopwatch of a probe on the simulated machines of tests/stream.py, once as it is and once
with the former rules, and writes reports/stream.md; takes seconds, needs neither a GPU nor an idle machine.
"""

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

from machine import write_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune.core import Measurement  # noqa: E402
from autotune.probe.order import CUDA_CONFIRMATION, CUDA_PROBE  # noqa: E402
from autotune.probe.process import ranks  # noqa: E402
from tests.stream import (  # noqa: E402
    CURVES,
    Case,
    Compared,
    Deadlock,
    HostTimed,
    Rank,
    RunsAhead,
    clock_share,
    last_steps,
    on_gpu,
)

OFF, ON = False, True
CASES = (
    Case("1 of 64, 18 ms", 64, on_gpu(0.018)),
    Case("1 of 64, 18 ms, no NaN filter", 64, on_gpu(0.018), OFF),
    Case("8 of 64, 165 ms (fp32)", 8, on_gpu(0.165)),
    Case("8 of 64, 165 ms (fp32), no NaN filter", 8, on_gpu(0.165), OFF),
    Case("4 of 64, 60 ms", 16, on_gpu(0.060)),
    Case("4 of 64, 60 ms, no NaN filter", 16, on_gpu(0.060), OFF),
    Case("one micro-step, 160 ms", 1, on_gpu(0.160)),
    Case("one micro-step, 160 ms, no NaN filter", 1, on_gpu(0.160), OFF),
    Case("two micro-steps, 80 ms, no NaN filter", 2, on_gpu(0.080), OFF),
    Case("three micro-steps, 55 ms, no NaN filter", 3, on_gpu(0.055), OFF),
    Case("four micro-steps, 40 ms, no NaN filter", 4, on_gpu(0.040), OFF),
    Case("launching takes longer than computing: 64 x 3 ms", 64, on_gpu(0.003)),
    Case("the same, no NaN filter", 64, on_gpu(0.003), OFF),
    Case("a large model: optimizer 150 ms, 16 x 400 ms", 16, on_gpu(0.4, optimizer=0.15)),
    Case("the same, no NaN filter", 16, on_gpu(0.4, optimizer=0.15), OFF),
    Case("a slow host: 30 ms for launching the optimizer, 16 x 10 ms", 16, on_gpu(0.01, optimizer_launch=0.03)),
    Case("the same, no NaN filter", 16, on_gpu(0.01, optimizer_launch=0.03), OFF),
    Case("slow loader (10 ms a batch), 64 x 18 ms", 64, on_gpu(0.018, 0.010)),
    Case("the same, no NaN filter", 64, on_gpu(0.018, 0.010), OFF),
    Case("very slow loader (200 ms), one micro-step of 160 ms", 1, on_gpu(0.160, 0.200)),
    Case("large batches: copies of 2 ms, 16 x 60 ms", 16, on_gpu(0.060, copy=0.002)),
    Case("the same, no NaN filter", 16, on_gpu(0.060, copy=0.002), OFF),
    Case("4 workers, 1 ms a batch, 64 x 18 ms", 64, on_gpu(0.018, 0.001), workers=4),
    Case("the same, no NaN filter", 64, on_gpu(0.018, 0.001), OFF, workers=4),
    Case("4 workers, 5 ms a batch, 8 x 165 ms", 8, on_gpu(0.165, 0.005), workers=4),
    Case("2 workers, 10 ms a batch, 64 x 18 ms", 64, on_gpu(0.018, 0.010), workers=2),
    Case("2 workers that do not keep up: 50 ms, 64 x 18 ms", 64, on_gpu(0.018, 0.050), workers=2),
    Case("2 workers that do not keep up, one micro-step", 1, on_gpu(0.160, 0.500), workers=2),
    Case("copies do not block, 64 x 18 ms", 64, on_gpu(0.018), blocking=False),
    Case("the same, no NaN filter", 64, on_gpu(0.018), OFF, blocking=False),
    Case("2 ranks, 64 x 18 ms", 64, on_gpu(0.018), ranks=2),
    Case("2 ranks, no NaN filter", 64, on_gpu(0.018), OFF, ranks=2),
    Case("8 ranks, 8 x 60 ms", 8, on_gpu(0.060), ranks=8),
    Case("8 ranks, no NaN filter", 8, on_gpu(0.060), OFF, ranks=8),
)


def before(case: Case) -> Compared:
    """With the wait by the host's clock, and every probe of workers repeated that seems to wait for a hundredth of a step."""

    def composes(probe: Measurement) -> bool:
        return not case.workers or (probe.data_wait_share or 0.0) <= 0.01

    return case.compared(HostTimed, composes)


def composing() -> list[str]:
    lines = [
        "| training | step | composed: before | after | data wait: true | before | after | runs all: before | after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        old, new = before(case), case.compared()
        errors = " | ".join(f"{each.error:+.1%}" for each in (old, new))
        # What copies that do not block hide is no wait: the loader's seconds are none of it.
        true = f"{new.true_wait_s / new.true_s:.1%}" if case.blocking else "-"
        waits = " | ".join([true, *(f"{each.wait_s / each.step_s:.1%}" for each in (old, new))])
        repeated = " | ".join("yes" if each.repeated else "" for each in (old, new))
        lines.append(f"| {case.name} | {new.true_s:.3f} s | {errors} | {waits} | {repeated} |")
    return lines


def ends(reading_s: float, nan_filter: bool, blocking: bool, kind: type[Rank]) -> str:
    """How two ranks end."""
    try:
        return f"{last_steps(2, reading_s, nan_filter, blocking, kind)} steps"
    except Deadlock:
        return "wait for ever"


def stopping() -> list[str]:
    lines = ["| NaN filter | copies | reading takes | next step, no wait | one wait alone | after next alone | now |"]
    lines.append("|---|---|---|---|---|---|---|")
    for nan_filter, blocking, reading_s in product((ON, OFF), (True, False), (0.0, 0.05)):
        told = (reading_s, nan_filter, blocking)
        with patch.object(ranks, "AHEAD", 1):
            former, waiting = ends(*told, RunsAhead), ends(*told, Rank)
        later, now = ends(*told, RunsAhead), ends(*told, Rank)
        cells = ["on" if nan_filter else "off", "block" if blocking else "do not block", f"{reading_s * 1000:.0f} ms"]
        lines.append(f"| {' | '.join([*cells, former, waiting, later, now])} |")
    return lines


def clocks() -> list[str]:
    lines = [
        "| card | step | probe | round: before | after | untimed seconds: before | after |",
        "|---|---|---|---|---|---|---|",
    ]
    former = replace(CUDA_CONFIRMATION, window_s=5.0, untimed_seconds_most=5.0)  # windows that never agree before
    for (name, curve), micro in product(CURVES.items(), (0.02, 0.1, 0.5)):
        probe, _ = clock_share(curve, CUDA_PROBE, micro)
        (old, old_s), (new, new_s) = (clock_share(curve, timing, micro) for timing in (former, CUDA_CONFIRMATION))
        shares = " | ".join(f"{share - 1:+.1%}" for share in (probe, old, new))
        lines.append(f"| {name} | {2 * micro:.2f} s | {shares} | {old_s:.1f} | {new_s:.1f} |")
    return lines


def main() -> None:
    """Write reports/stream.md."""
    lines = ["All clocks are simulated: a host that launches, and a device that works off what it queued.", ""]
    lines += ["## Composed steps and the wait for data", "", *composing(), ""]
    lines += ["## The last step of two ranks", "", *stopping(), ""]
    lines += ["## Speeds while a clock falls, against the settled one", "", *clocks()]
    write_table(ROOT / "reports" / "stream.md", "Timing on a simulated GPU", lines)


if __name__ == "__main__":
    main()
