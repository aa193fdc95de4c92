"""Tables that benchmarks write, from made-up results."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import executors
from anytime import FALSE, HOLDS, MISSES, NONE, Course, cut_promises, losses, one_search, promises, regrets, rows
from anytime import Case as CutCase
from anytime import judged as judged_promise
from page import lines_of, main
from peer_table import Finding, Judged, section
from peers import QUICK, WORKS, Work, find, judge, prepare
from promised import Case, speeds_of, turn_steps
from promised import table as promised_table
from search_seconds import BEFORE, CASES, NOW, PARTS, part_lines
from search_seconds import searched as search_of
from tables import DRIFT_PROBES, TableProbe, read_table, wandering

from autotune.core.interval import Ratio
from autotune.core.slot import Slot
from autotune.probe import ProbeOptions
from tests.makers import configuration, trial

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


def test_findings_and_rounds_in_the_folder_are_not_made_again(tmp_path: Path) -> None:
    work = WORKS[0]
    for result in FINDINGS:
        place = tmp_path / result.name
        place.mkdir()
        (place / "finding.json").write_text(json.dumps(vars(result)))
        for number in range(work.rounds if result.arguments else 0):
            (place / f"round-{number}.json").write_text(json.dumps(JUDGED[result.name].rounds[number]))
    findings = [find(work, result.name, tmp_path / result.name) for result in FINDINGS]
    assert findings == FINDINGS
    assert judge(work, findings, tmp_path) == JUDGED


def test_settings_that_one_answer_spells_out_and_another_leaves_out_are_trained_once(tmp_path: Path) -> None:
    spelled = finding("autotune", 8, 6, bf16=False, optim="adamw_torch_fused", dataloader_num_workers=0)
    (tmp_path / "defaults").mkdir()
    for number, kept in enumerate(JUDGED["defaults"].rounds):
        (tmp_path / "defaults" / f"round-{number}.json").write_text(json.dumps(kept))
    judged_alike = judge(WORKS[0], [FINDINGS[0], replace(spelled, model_arguments={"dtype": "float32"})], tmp_path)
    assert judged_alike == {"defaults": JUDGED["defaults"], "autotune": JUDGED["defaults"]}


def test_the_promised_speed_up_is_held_against_that_of_the_rounds() -> None:
    speeds = {"samples_per_second": 30.0, "samples_per_second_low": 29.0, "samples_per_second_high": 31.0}
    promised = {name: speeds | {"peak_bytes": 300 * MIB} for name in ("best", "baseline")}
    promised |= {"speedup": 1.8, "speedup_low": 1.6, "speedup_high": 2.0}
    lines = section("t", 48, [*FINDINGS[:-1], replace(FINDINGS[-1], promised=promised)], JUDGED)
    table = rows_of(lines)
    assert table["best"] == ["30.0 (29.0 to 31.0) samples/s", "60.0", "-50.0%", "300 MiB", "300 MiB"]
    assert table["speed-up"][:3] == ["1.80x (1.60 to 2.00)", "1.50x", "+20.0%"], "60 of ours, 40 of the defaults"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # PEFT asks by a deprecated name
@pytest.mark.parametrize("work", QUICK, ids=lambda work: work.name)
def test_the_plain_script_trains_each_task_from_what_is_prepared(work: Work, tmp_path: Path) -> None:
    from plain_training import data_of, model_of
    from transformers import default_data_collator

    prepare(work, tmp_path / "peer")
    data, model = data_of(tmp_path / "peer", 64), model_of(tmp_path / "peer")
    samples: Any = data["train_dataset"]
    assert len(samples) == (work.samples or 64)
    collate: Any = data.get("data_collator", default_data_collator)
    model(**collate([samples[0], samples[1]])).loss.backward()
    learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert all(".lora_" in name for name in learning) == bool(work.adapter)


@pytest.mark.nightly
def test_a_small_study_s_page_is_measured(tmp_path: Path) -> None:
    main(6, 2, tmp_path / "page.md")
    assert "| 6 | 2 | " in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("run", "verdict"), [([2.9, 2.0, 1e6], "met"), ([3.1, 2.0, 1e6], "missed"), ([2.9, 2.0, 2.1e6], "missed")]
)
def test_one_run_that_is_too_long_or_too_large_misses_the_target(run: list[float], verdict: str) -> None:
    assert lines_of(500, [[1.0, 1.0, 1e6], run])[2].endswith(f": {verdict} |")


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


def test_batches_that_workers_prepared_while_a_script_stood_still_do_not_count() -> None:
    slow, fast = trial(0, 48.0), trial(1, 96.0, of=configuration(8, workers=4))
    steps, skipped = turn_steps([slow, fast], 20.0)
    assert skipped == 1 + 2, "eight batches are two steps of six micro-steps"
    assert steps - skipped == 2, "by the slower of both"

    class Script:
        done = {  # noqa: RUF012
            "step_times_s": [9.0] * 5 + ([9.0] * skipped + [1.0, 2.0]) * 3,
            "imports_autotune": False,
            "global_batch_size": 48,
        }

    assert speeds_of(Script(), 48, steps, skipped) == pytest.approx([32.0] * 3)


# Searches cut at any time ---------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [1, 4])
def test_a_search_begins_with_the_users_settings_and_ends_as_one_that_nobody_cut(devices: int) -> None:
    course = one_search(CutCase("vision", 0.5, "physics", 108, devices, 0.005))
    whole = executors.replayed("vision", 0.5, 108, devices, "alike", 0.005, corrected=True)
    table = read_table("vision")
    baseline, budget = table.space.baseline, table.budget(0.5)
    fitting = [speed for item, speed in table.speeds.items() if table.peaks[item] <= budget]
    untuned = pytest.approx(1 - table.speeds[baseline] / max(fitting), abs=1e-4)
    assert course.at(0.99)[1:] == (untuned, untuned, NONE), "the baseline takes until 1"
    assert course.at(course.time)[1] == course.at(60)[1] == pytest.approx(whole["regret"], abs=1e-4)
    assert course.time == pytest.approx(whole["seconds"] / table.baseline_seconds, abs=0.01)
    assert (course.probes, course.rounds) == (whole["probes"], whole["rounds"])
    assert all(handed >= probed for _, handed, probed, _ in course.points)


def test_the_same_drift_moves_all_speeds_and_only_another_seed_draws_another_one() -> None:
    table = read_table("encoder")
    seconds = 7.0 * DRIFT_PROBES * table.baseline_seconds
    moved = []
    still = TableProbe(table, 10**12, 3)
    drifting = replace(still, drift=0.1, clock=lambda: seconds)
    for item in list(table.measured)[:5]:
        options = ProbeOptions(Slot(1), 60.0)
        speeds = [float(probe(item, options).samples_per_second or 0.0) for probe in (still, drifting)]
        moved.append(math.log(speeds[1] / speeds[0]))
    assert moved == pytest.approx([0.1 * wandering(3, 7.0)] * 5)
    assert wandering(3, 7.0) == wandering(3, 7.0) != wandering(4, 7.0)


def test_a_drift_has_the_deviation_and_the_memory_that_it_says() -> None:
    drifts = [[wandering(seed, time) for time in (0.0, 1.0, 8.0)] for seed in range(2000)]
    first, after_one, last = zip(*drifts, strict=True)
    assert [pstdev(several) for several in (first, after_one, last)] == pytest.approx([1.0] * 3, abs=0.05)

    def correlation(others: tuple[float, ...]) -> float:
        return fmean(one * other for one, other in zip(first, others, strict=True))

    assert correlation(after_one) == pytest.approx(math.exp(-1), abs=0.08)
    assert correlation(last) == pytest.approx(0.0, abs=0.08)


def course(*points: tuple[float, float, float, str], **facts: Any) -> Course:
    known = {
        "table": "vision",
        "share": 0.5,
        "sampler": "physics",
        "seed": 100,
        "devices": 1,
        "noise": 0.02,
    }
    known |= {"drift": 0.0, "taught": "", "runs": True, "time": 20.0, "probes": 8, "rounds": 6, "out_of_memory": 0}
    return Course(**known | {"points": points, "promised": None} | facts)


COURSES = [
    course((0, 0.4, 0.4, NONE), (5, 0.4, 0.1, NONE), (9, 0.1, 0.1, HOLDS), promised=(1.5, 1.4, 1.6)),
    course((0, 0.2, 0.2, NONE), (3, 0.2, 0.0, NONE), (7, 0.3, 0.0, FALSE), promised=(0.9, 1.1, 1.3)),
    course((0, 0.1, 0.1, NONE), noise=0.1),
]


def test_what_is_lost_is_not_found_or_not_shown() -> None:
    quiet, noisy = rows(COURSES, ("noise",), regrets(1, (0, 6, 60)))
    assert quiet == ["0.02", "2", "30.0% (39%)", "30.0% (39%)", "20.0% (29%)"]
    assert noisy[0] == "0.1"
    assert losses(COURSES[:2])[:4] == ["2", "20.0% + 10.0%", "5.0% + 30.0%", "5.0% + 15.0%"]


def test_a_promise_is_counted_if_it_is_made_and_held_against_the_truth() -> None:
    gain = Ratio(1.2, 1.1, 1.3)
    assert [judged_promise(gain, true) for true in (1.15, 1.4, 1.05, 0.9)] == [HOLDS, MISSES, MISSES, FALSE]
    assert judged_promise(Ratio(1.0, 0.9, 1.1), 0.8) == MISSES, "it does not say faster"
    assert promises(COURSES) == ["3", "2", "50%", "0 / 1", "±8.9%", "1"]
    assert promises(COURSES[2:])[:3] == ["1", "0", "-"]
    assert cut_promises(COURSES)[:6] == ["3", "0%", "0%", "0%", "33%: 0%, 1 false", "67%: 50%, 1 false"]


# Seconds of a search on an assumed card ---------------------------------------------------------------------------


def test_a_simulated_search_is_shorter_now_and_as_good() -> None:
    lora = next(case for case in CASES if case.name == "8B LoRA")
    before, now = (search_of(lora, behaviour) for behaviour in (BEFORE, NOW))
    assert {*before.parts, *now.parts} <= {*PARTS}
    assert now.all < 0.5 * before.all
    assert now.regret <= before.regret + 0.01
    assert now.parts["reference"] < before.parts["reference"]
    assert any(line.startswith("| times as fast | 1 | ") for line in part_lines(before, now))
