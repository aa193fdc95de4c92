"""The table of peers, from what they found and how it trained."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from peer_table import Finding, Judged, section
from peers import WORKS, find, judge

MIB = 2**20


def finding(name: str, micro: int, accumulation: int, **arguments: Any) -> Finding:
    sizes = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    return Finding(name, sizes | {"use_cpu": True} | arguments, {}, 20, 7, 123.4)


def got(*speeds: float | str) -> Judged:
    """A run for each speed, or for what it died of."""
    return Judged(
        [
            {"said": one} if isinstance(one, str) else {"samples_per_second": one, "peak_bytes": 300 * MIB}
            for one in speeds
        ]
    )


FOUND = [
    Finding("defaults", {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6}, {}, 0, 0, 0.0),
    finding("accelerate", 18, 2),
    finding("lightning", 16, 3),
    Finding("hyperparameter_search", None, {}, 3, 3, 9.0, "exit code 1: no trial ended"),
    finding("autotune", 8, 6, bf16=True, dataloader_num_workers=2),
]
JUDGED = {
    "defaults": got(40.0, 39.0, 41.0),
    "accelerate": got(90.0, 90.0, 90.0),
    "lightning": got(70.0, "exit code 1: can't allocate memory", "exit code 1: can't allocate memory"),
    "autotune": got(60.0, 58.0, 62.0),
}


def rows(lines: list[str]) -> Mapping[str, list[str]]:
    """Cells by what stands in the first."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {one[0]: one[1:] for one in cells}


def test_a_row_says_what_was_found_how_it_trained_and_what_it_cost() -> None:
    told = rows(section("t", 48, FOUND, JUDGED))
    ours = ["8 x 6, bf16, 2 workers", "48", "yes", "60.0 (1.50x)", "300 MiB", "20, 7 failed", "123"]
    assert told["`autotune search`"] == ours
    assert told["the Trainer's defaults, accumulation by hand"][3] == "40.0 (1.00x)"


def test_another_global_batch_and_what_does_not_fit_stand_out() -> None:
    told = rows(section("t", 48, FOUND, JUDGED))
    assert told["accelerate's `find_executable_batch_size`"][1] == "**36** instead of 48"
    assert told["Lightning's `Tuner.scale_batch_size`, accumulation by hand"][2] == "**no**: 2 of 3 runs"


def test_a_peer_that_died_has_a_row_and_its_reason() -> None:
    lines = section("t", 48, FOUND, JUDGED)
    name = "the Trainer's `hyperparameter_search`, Optuna"
    assert rows(lines)[name] == ["nothing", "-", "-", "-", "-", "3, 3 failed", "9"]
    assert f"{name} ended with: exit code 1: no trial ended" in "\n".join(lines)


def test_only_what_keeps_the_global_batch_and_fits_is_ranked() -> None:
    text = "\n".join(section("t", 48, FOUND, JUDGED))
    assert "Of the 2 that keep the global batch and fit, `autotune search` is first, 60.0 samples/s" in text
    assert "overlap" not in text


def test_what_ours_promised_is_held_against_the_plain_script() -> None:
    told = {"samples_per_second": 57.0, "samples_per_second_low": 55.0, "samples_per_second_high": 59.0}
    promised = {"best": told | {"peak_bytes": 290 * MIB}, "baseline": told | {"peak_bytes": 280 * MIB}}
    ours = Finding("autotune", FOUND[-1].arguments, {}, 20, 7, 123.4, "", promised)
    lines = section("t", 48, [*FOUND[:-1], ours], JUDGED)
    assert rows(lines)["best"] == ["57.0 (55.0 to 59.0)", "60.0", "-5.0%", "290 MiB", "300 MiB"]


def test_what_lies_in_the_folder_is_not_found_or_trained_again(tmp_path: Path) -> None:
    work = WORKS[0]
    for one in FOUND:
        place = tmp_path / one.name
        place.mkdir()
        (place / "finding.json").write_text(json.dumps(vars(one)))
        for at in range(work.rounds if one.arguments else 0):
            (place / f"round-{at}.json").write_text(json.dumps(JUDGED[one.name].rounds[at]))
    found = [find(work, one.name, tmp_path / one.name) for one in FOUND]
    assert found == FOUND
    assert judge(work, found, tmp_path) == JUDGED
