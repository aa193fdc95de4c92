"""Trials as a table: documented columns in their order, dtypes that never depend on the rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from autotune.core import Configuration, Outcome, Step, Trial
from autotune.report.table import frame
from tests.makers import MIB, completed, configuration, ended, out_of_memory, result, trial, verification, warned

MIXED = [
    trial(0, 10.0, of=configuration(8), confirmed=9.5, probe_seconds=2.0),
    trial(1, 20.0, 700 * MIB, of=configuration(16, precision="bf16", pin_memory=True), ended_early=True),
    trial(2, 30.0, peak_device_bytes=None, peak_reserved_bytes=5, observed_warnings=warned("throttled", "a, b")),
    Trial(3, configuration(48), out_of_memory(configuration(48))),
    Trial(4, configuration(24), ended(Outcome.CRASHED, reason='it said "no", twice\nand\r\nmore | é')),
    Trial(
        5,
        configuration(24, workers=2),
        completed(
            steps=(Step(2.0, 0.5, 0, 0, 1.5, 0.25, 48, 480, 0.4, 0.75, non_padding_tokens=240),),
            joules=96.0,
            skipped_steps=1,
            repeated_because=warned("a foreign process", "throttled"),
        ),
        disqualified_reason="its loss differs",
    ),
]


def test_the_settings_are_those_of_the_space() -> None:
    small = Configuration.exact(8, 2, {"precision": "fp32"})
    columns = list(frame([trial(0, of=small)]).columns)
    assert columns[15:18] == ["global_batch_size", "precision", "tokens_per_second"]


def test_the_dtypes_do_not_depend_on_the_rows() -> None:
    everywhere = frame(MIXED).dtypes.astype(str).to_dict()
    for trials in (MIXED[:1], MIXED[3:5], []):
        assert frame(trials).dtypes.astype(str).to_dict().items() <= everywhere.items()


def test_what_is_unknown_is_missing_and_never_zero() -> None:
    row = frame(MIXED).iloc[3]
    for name in ("samples_per_second", "step_time_s", "joules_per_sample", "data_wait_share"):
        assert np.isnan(row[name])
    assert row["peak_device_bytes"] is pd.NA
    assert (row["timed_steps"], bool(row["fits"]), bool(row["input_bound"])) == (0, False, False)
    assert np.isnan(frame(MIXED).iloc[0]["tokens_per_second"])


def test_the_parts_of_a_step_and_what_became_of_the_measurement_are_shown() -> None:
    row = frame(MIXED).iloc[5]
    parts = [row[f"{name}_time_s"] for name in ("forward", "backward", "overhead", "optimizer_step")]
    assert parts == pytest.approx([0.4, 0.75, 0.1, 0.25])
    assert sum(parts) + row["data_wait_s"] == pytest.approx(row["step_time_s"])
    assert [row["tokens_per_second"], row["non_padding_tokens_per_second"]] == pytest.approx([240.0, 120.0])
    assert (row["data_wait_share"], bool(row["input_bound"])) == (pytest.approx(0.25), True)
    assert row["joules_per_sample"] == pytest.approx(2.0)
    assert (row["skipped_steps"], row["allocator_retries"], row["rounds"]) == (1, 0, 0)
    assert row["remeasured_reason"] == "; ".join(map(str, warned("a foreign process", "throttled")))
    assert row["disqualified_reason"] == "its loss differs"
    assert frame(MIXED).iloc[2]["warnings"] == "; ".join(map(str, warned("throttled", "a, b")))


def test_a_trial_that_was_measured_again_shows_its_rounds_and_the_time_of_all_its_probes() -> None:
    row = frame(MIXED).iloc[0]
    assert row["samples_per_second"] == pytest.approx(9.5)
    assert (row["timed_steps"], row["rounds"], bool(row["confirmed"])) == (12, 2, True)
    assert row["probe_seconds"] == pytest.approx(2.0 + 2 * 2.0)
    assert not frame(MIXED).iloc[1]["confirmed"]


def test_ranks_begin_with_the_answer_and_leave_out_what_cannot_win() -> None:
    trials = [
        trial(0, 10.0, confirmed=10.0),
        trial(1, 20.0, confirmed=20.0),
        trial(2, 30.0),
        replace(trial(3, 40.0), disqualified_reason="its loss differs"),
        Trial(4, configuration(48), out_of_memory(configuration(48))),
    ]
    assert frame(trials)["rank"].fillna(0).tolist() == [3, 1, 2, 0, 0]


def test_what_verify_refuted_has_no_rank_and_the_first_is_what_it_was_compared_with() -> None:
    study = result(verification=verification(result().best.configuration, False, 0.8))
    assert result().to_frame()["rank"].fillna(0).tolist() == [2, 1, 0]
    assert study.to_frame()["rank"].fillna(0).tolist() == [1, 0, 0]


def test_a_speed_up_compares_what_is_side_by_side_else_probes_and_says_whether_it_is_proven() -> None:
    table = frame([trial(0, 8.0, confirmed=8.0), trial(1, 24.0, confirmed=24.0), trial(2, 22.0)])
    assert table["speedup"].tolist() == pytest.approx([1.0, 3.0, 22 / 8], rel=1e-3)
    assert table["confirmed"].tolist() == [True, True, False]
    assert (table["speedup_low"] <= table["speedup"]).all()
    assert frame([Trial(0, configuration(), out_of_memory(configuration())), trial(1)])["speedup"].isna().all()


def test_where_memory_ran_out_is_said_of_nothing_else() -> None:
    trials = [
        Trial(0, configuration(), out_of_memory(configuration())),
        Trial(1, configuration(), ended(Outcome.CRASHED, where="x")),
    ]
    assert frame(trials)["out_of_memory_stage"].tolist() == ["forward", ""]
