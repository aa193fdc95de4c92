"""Tables that benchmarks write, from made-up results."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from peer_table import Finding, Judged, section
from promised import Case
from promised import table as promised_table

MIB = 2**20


def finding(name: str, micro: int, accumulation: int, **arguments: Any) -> Finding:
    sizes = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    return Finding(name, sizes | {"use_cpu": True} | arguments, {}, 20, 7, 123.4)


def judged(*runs: float | str) -> Judged:
    """Speeds of runs, or what they died of."""
    return Judged(
        [
            {"said": run} if isinstance(run, str) else {"samples_per_second": run, "peak_bytes": 300 * MIB}
            for run in runs
        ]
    )


FINDINGS = [
    Finding("defaults", {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6}, {}, 0, 0, 0.0),
    finding("accelerate", 18, 2),
    finding("lightning", 16, 3),
    Finding("hyperparameter_search", None, {}, 3, 3, 9.0, "exit code 1: no trial ended"),
    finding("autotune", 8, 6, bf16=True, dataloader_num_workers=2),
]
JUDGED = {
    "defaults": judged(40.0, 39.0, 41.0),
    "accelerate": judged(90.0, 90.0, 90.0),
    "lightning": judged(70.0, "exit code 1: can't allocate memory", "exit code 1: can't allocate memory"),
    "autotune": judged(60.0, 58.0, 62.0),
}


def rows_of(lines: list[str]) -> Mapping[str, list[str]]:
    """First cell of each row -> the others."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row[1:] for row in cells}


def test_peers_are_ranked_by_what_keeps_the_global_batch_and_fits() -> None:
    lines = section("t", 48, FINDINGS, JUDGED)
    table = rows_of(lines)
    assert table["`autotune search`"] == [
        "8 x 6, bf16, 2 workers", "48", "yes", "60.0 (1.50x)", "300 MiB", "20, 7 failed", "123",
    ]  # fmt: skip
    assert table["the Trainer's defaults, accumulation by hand"][3] == "40.0 (1.00x)"
    assert table["accelerate's `find_executable_batch_size`"][1] == "**36** instead of 48"
    assert table["Lightning's `Tuner.scale_batch_size`, accumulation by hand"][2] == "**no**: 2 of 3 runs"
    name = "the Trainer's `hyperparameter_search`, Optuna"
    assert table[name] == ["nothing", "-", "-", "-", "-", "3, 3 failed", "9"]
    text = "\n".join(lines)
    assert f"{name} ended with: exit code 1: no trial ended" in text
    assert "Of the 2 that keep the global batch and fit, `autotune search` is first, 60.0 samples/s" in text


# Promised speed-ups ---------------------------------------------------------------------------------------------------


def case(measured: float, promised: tuple[float, float, float] | None = (1.5, 1.4, 1.6), **facts: Any) -> Case:
    """A search that promised this, and plain scripts that were so many times as fast."""
    speeds = (10.0, 10.1, 9.9), (10.0 * measured, 10.1 * measured, 9.9 * measured)
    known = {"work": "images", "seed": 0, "kept": False, "trial": 3, "change": "16x1, bf16", "confirmed": True}
    return Case(**known | {"promised": promised, "speeds": speeds, "busy": 0.01, "search_s": 60.0} | facts)


def test_a_search_that_kept_the_users_settings_is_no_hit() -> None:
    cases = [case(1.45), case(1.7), case(1.2), case(1.01, (1.02, 0.9, 1.1), kept=True), case(1.2, kept=True)]
    lines = promised_table([*cases, case(1.0, None, kept=True, trial=None, speeds=((), ()))])
    text = "\n".join(lines)
    assert "**The interval holds the measured speed-up in 1 of 3 searches.**" in text
    assert "above the interval in 1 and below in 1" in text
    assert "3 of 6 searches kept the user's settings." in text
    assert "no more than 5% faster in 1 of 2, and 1.20x as fast in the others; in 1 nothing else ran" in text
    assert [line.split("|")[-2].strip() for line in lines if line.startswith("| images")] == [
        *("yes", "above", "below", "yes", "below", "-")
    ]
