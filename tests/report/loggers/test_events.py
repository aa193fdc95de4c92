"""What loggers are told of trials and answers."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Interval, Outcome, Trial
from autotune.report.loggers.events import ending, rows, study_facts
from tests.makers import configuration, ended, out_of_memory, trial
from tests.report.loggers.studies import result


def test_a_row_has_the_probe_s_own_numbers_whether_or_not_it_was_confirmed_since() -> None:
    confirmed = result().trials
    probed = [replace(one, confirmations=()) for one in confirmed]
    assert list(rows(confirmed, "samples_per_second")) == list(rows(probed, "samples_per_second"))


def test_best_and_speed_up_so_far_never_look_ahead() -> None:
    trials = [trial(number, speed) for number, speed in enumerate((10.0, 5.0, 40.0, 20.0))]
    told = list(rows(trials, "samples_per_second"))
    assert [row.numbers["best_samples_per_second"] for row in told] == pytest.approx([10, 10, 40, 40])
    assert [row.numbers["speedup_so_far"] for row in told] == pytest.approx([1, 1, 4, 4])


def test_unknown_and_endless_numbers_are_left_out() -> None:
    failed = configuration(48)
    (row,) = rows([Trial(0, failed, out_of_memory(failed))], "samples_per_second", {0: float("inf")})
    assert row.outcome == "out_of_memory"
    assert row.numbers["feasible"] == 0
    assert row.numbers["fits"] > 0
    assert not {"samples_per_second", "best_samples_per_second", "speedup_so_far", "untried_could_win"} & set(
        row.numbers
    )


def test_where_the_baseline_does_not_run_there_is_no_speed_up() -> None:
    first = Trial(0, configuration(8), ended(Outcome.CRASHED))
    told = list(rows([first, trial(1, 10.0)], "samples_per_second"))
    assert "speedup_so_far" not in told[1].numbers
    assert told[1].numbers["best_samples_per_second"] == pytest.approx(10.0)


def test_only_rows_after_the_last_one_told_are_made() -> None:
    assert [row.number for row in rows(result().trials, "samples_per_second", after=1)] == [2]


def test_facts_say_what_was_asked_and_name_no_folder() -> None:
    made = result()
    request = replace(made.request, space="/home/someone/spaces/mine.yaml", dataset="/home/someone/data.txt")
    facts = study_facts(request, replace(made, request=request))
    assert facts["space"] == "mine.yaml"
    assert facts["global_batch_size"] == 48
    assert facts["version_torch"] == "2.13.0"
    assert not [value for value in facts.values() if "/home" in str(value)]


def test_an_ending_without_an_answer_says_so(tmp_path: Path) -> None:
    failed = configuration(48)
    told = ending(result(trials=[Trial(0, failed, out_of_memory(failed))]), tmp_path, complete=True)
    assert told.words["headline"].startswith("Nothing fits")
    assert told.numbers == {}
    assert told.values == {}
    assert told.files == []


def test_an_ending_holds_the_confirmed_answer_and_the_report_s_files(tmp_path: Path) -> None:
    made = result()
    made.save(tmp_path)
    told = ending(made, tmp_path, complete=True)
    assert made.speedup == Interval(*(told.numbers[name] for name in ("speedup", "speedup_low", "speedup_high")))
    assert told.numbers["best_trial"] == 1
    assert told.values["precision"] == "bf16"
    assert {path.name for path in told.files} >= {"summary.md", "trials.csv", "best_model_arguments.json"}
