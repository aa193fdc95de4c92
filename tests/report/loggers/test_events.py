"""Events of a study for loggers."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Interval, Outcome, Trial
from autotune.report.loggers.events import ending, rows, study_facts
from tests.makers import configuration, ended, out_of_memory, trial
from tests.report.loggers.studies import result


def test_a_row_has_the_probe_s_own_numbers_whether_or_not_it_was_confirmed_since() -> None:
    confirmed = result().trials
    probed = [replace(trial, confirmations=()) for trial in confirmed]
    assert list(rows(confirmed, "samples_per_second")) == list(rows(probed, "samples_per_second"))


def test_best_and_speed_up_so_far_never_look_ahead() -> None:
    trials = [trial(number, speed) for number, speed in enumerate((10.0, 5.0, 40.0, 20.0))]
    numbers = [row.numbers for row in rows(trials, "samples_per_second")]
    assert [row["fastest_samples_per_second"] for row in numbers] == pytest.approx([10, 10, 40, 40])
    assert [row["speedup_so_far"] for row in numbers] == pytest.approx([1, 1, 4, 4])


def test_unknown_and_endless_numbers_are_left_out() -> None:
    lost = configuration(48)
    (row,) = rows([Trial(0, lost, out_of_memory(lost))], "samples_per_second", {0: float("inf")})
    assert (row.outcome, row.numbers["fits"]) == ("out_of_memory", 0)
    assert row.numbers["above_allowed"] > 0
    unknown = {"samples_per_second", "fastest_samples_per_second", "speedup_so_far", "untried_could_win"}
    assert not unknown & set(row.numbers)
    crashed = Trial(0, configuration(8), ended(Outcome.CRASHED))
    (row,) = rows([crashed, trial(1, 10.0)], "samples_per_second", numbers={1})
    assert "speedup_so_far" not in row.numbers, "there is no baseline to compare with"
    assert row.numbers["fastest_samples_per_second"] == pytest.approx(10.0)


def test_facts_say_what_was_asked_and_name_no_folder() -> None:
    study = result()
    request = replace(study.request, space="/home/someone/spaces/mine.yaml", dataset="/home/someone/data.txt")
    facts = study_facts(replace(study, request=request))
    assert facts["space"] == "mine.yaml"
    assert facts["global_batch_size"] == 48
    assert facts["version_torch"] == "2.13.0"
    assert not [value for value in facts.values() if "/home" in str(value)]


def test_an_ending_holds_the_confirmed_answer_and_the_report_s_files(tmp_path: Path) -> None:
    study = result()
    study.save(tmp_path)
    end = ending(study, tmp_path)
    assert study.speedup == Interval(*(end.numbers[name] for name in ("speedup", "speedup_low", "speedup_high")))
    assert (end.numbers["best_trial"], end.values["precision"]) == (1, "bf16")
    assert {path.name for path in end.files} >= {"summary.md", "trials.csv", "best_model_arguments.json"}
    lost = configuration(48)
    end = ending(result(trials=[Trial(0, lost, out_of_memory(lost))]), tmp_path / "none")
    assert end.words["headline"].startswith("Nothing fits")
    assert (end.numbers, end.values, end.files) == ({}, {}, [])
