"""One trial's measuring: its deadline, its bar, its repeats where it was disturbed, and what is on disk of it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Outcome, Trial, read_json, write_json
from autotune.core.errors import StorageFailed
from autotune.core.slot import Slot
from autotune.probe import ProbeOptions
from autotune.probe.order import ANSWER, ORDER
from autotune.space.dominance import baseline_notes, implied_by
from autotune.study import measure as measuring
from autotune.study.job import Job
from autotune.study.loop import open_study, search
from autotune.study.measure import (
    LONGEST_BASELINE_S,
    REPEATS,
    STAYS_DISTURBED,
    as_requested,
    callback_notes,
    keep,
    left_out,
    measure,
    needs_too_much,
)
from autotune.study.plan import Plan
from autotune.study.store import probe_folder, read_trial
from tests.makers import ALLOWED, MIB, completed, configuration, ended, out_of_memory, space, trial, warned
from tests.replay_probe import ReplayProbe

OF = configuration()
FOREIGN = warned("4711")


def plan(**facts: Any) -> Plan:
    known = {"n_trials": 9, "objective": "samples_per_second", "allowed_bytes": ALLOWED}
    return Plan(**known | facts)


def answering(*measurements: Measurement) -> ReplayProbe:
    """A probe that gives these answers in turn, the last one from then on."""

    def world(_: Configuration) -> Measurement:
        return measurements[min(len(probe.asked), len(measurements)) - 1]

    probe = ReplayProbe(world)
    return probe


def disturbed(speed: float = 5.0) -> Measurement:
    return completed(OF, speed, observed_warnings=FOREIGN)


def asked_of(folder: Path, trials: list[Trial], **fields: Any) -> ProbeOptions:
    """The options with which the next trial (or its confirmation) is asked for."""
    probe = answering(completed(OF))
    confirmation = fields.pop("confirmation", 0)
    of = fields.pop("of", OF)
    measure(folder, plan(**fields), trials, probe, Job(Slot(len(trials), confirmation), of))
    return probe.asked[0][1]


# Disturbed ------------------------------------------------------------------------------------------------------


def test_what_was_not_disturbed_is_measured_once(tmp_path: Path) -> None:
    probe = answering(completed(OF))
    measurement = measure(tmp_path, plan(), [], probe, Job(Slot(), OF))
    assert len(probe.asked) == 1
    assert measurement.repeated_because == ()


def test_a_disturbed_measurement_is_made_anew_and_says_why(tmp_path: Path) -> None:
    probe = answering(disturbed(), completed(OF, 10.0))
    measurement = measure(tmp_path, plan(), [], probe, Job(Slot(), OF))
    assert len(probe.asked) == 2
    assert probe.asked[0] == probe.asked[1]
    assert measurement.samples_per_second == pytest.approx(10.0)
    assert measurement.repeated_because == FOREIGN
    assert measurement.observed_warnings == ()


def test_what_stays_disturbed_is_repeated_no_more_than_twice_and_keeps_every_reason(tmp_path: Path) -> None:
    throttled = replace(disturbed(), observed_warnings=warned("throttled"))
    probe = answering(disturbed(), throttled, disturbed(7.0))
    measurement = measure(tmp_path, plan(), [], probe, Job(Slot(), OF))
    assert len(probe.asked) == 1 + REPEATS == 3
    assert measurement.samples_per_second == pytest.approx(7.0)
    assert measurement.repeated_because == (*FOREIGN, *warned("throttled"))
    assert measurement.observed_warnings == FOREIGN, "the last one is warned still"


@pytest.mark.parametrize(
    "first",
    [
        out_of_memory(OF, observed_warnings=FOREIGN),
        ended(Outcome.TIMED_OUT, observed_warnings=FOREIGN),
        completed(OF, observed_warnings=FOREIGN, ended_early=True),
    ],
    ids=["out of memory", "timed out", "hopeless"],
)
def test_an_end_that_a_stranger_may_have_brought_about_is_tried_again(tmp_path: Path, first: Measurement) -> None:
    measurement = measure(tmp_path, plan(), [], answering(first, completed(OF)), Job(Slot(), OF))
    assert measurement.feasible
    assert measurement.repeated_because == FOREIGN


@pytest.mark.parametrize(
    "outcome", [Outcome.CRASHED, Outcome.UNSUPPORTED, Outcome.MISCONFIGURED, Outcome.NON_FINITE_LOSS]
)
def test_an_end_that_no_stranger_brings_about_stands(tmp_path: Path, outcome: Outcome) -> None:
    probe = answering(ended(outcome, observed_warnings=FOREIGN))
    measure(tmp_path, plan(), [], probe, Job(Slot(), OF))
    assert len(probe.asked) == 1


def test_a_confirmation_that_was_disturbed_is_made_anew_too(tmp_path: Path) -> None:
    probe = answering(disturbed(), completed(OF))
    measurement = measure(tmp_path, plan(), [trial(0)], probe, Job(Slot(0, 2), OF))
    assert [options.slot.round for _, options in probe.asked] == [2, 2]
    assert measurement.repeated_because == FOREIGN


@pytest.mark.parametrize(
    ("before", "probes"),
    [
        (STAYS_DISTURBED, 1),
        (STAYS_DISTURBED - 1, 1 + REPEATS),
    ],
)
def test_a_disturbance_that_stays_is_the_machine_as_it_is(tmp_path: Path, before: int, probes: int) -> None:
    probe = answering(disturbed())
    trials = [trial(number, observed_warnings=FOREIGN) for number in range(before)]
    measurement = measure(tmp_path, plan(), trials, probe, Job(Slot(before), OF))
    assert len(probe.asked) == probes
    assert measurement.observed_warnings == FOREIGN


def test_one_quiet_trial_among_the_last_ends_that(tmp_path: Path) -> None:
    probe = answering(disturbed())
    trials = [trial(number, observed_warnings=FOREIGN) for number in range(5)] + [trial(5)]
    measure(tmp_path, plan(), trials, probe, Job(Slot(6), OF))
    assert len(probe.asked) == 1 + REPEATS


# On disk --------------------------------------------------------------------------------------------------------


def test_what_a_probe_left_unwritten_is_on_disk(tmp_path: Path) -> None:
    measurement = measure(tmp_path, plan(), [], answering(completed(OF)), Job(Slot(3), OF))
    assert read_trial(probe_folder(tmp_path, Slot(3)), 3) == Trial(3, OF, measurement)


def test_why_a_measurement_was_repeated_is_on_disk(tmp_path: Path) -> None:
    measure(tmp_path, plan(), [], answering(disturbed(), completed(OF)), Job(Slot(3), OF))
    read = read_trial(probe_folder(tmp_path, Slot(3)), 3)
    assert read is not None
    assert read.measurement.repeated_because == FOREIGN


def test_a_measurement_gets_its_time_and_why_it_was_repeated(tmp_path: Path) -> None:
    before = time.time()
    measure(tmp_path, plan(), [], answering(completed(OF)), Job(Slot(), OF))
    assert before <= read_json(probe_folder(tmp_path, Slot(0)) / ANSWER)["started_s"] <= time.time()
    measure(tmp_path, plan(), [], answering(disturbed(), completed(OF)), Job(Slot(1), OF))
    assert read_json(probe_folder(tmp_path, Slot(1)) / ANSWER)["repeated_because"] == [
        warning.to_dict() for warning in FOREIGN
    ]


def test_a_probes_own_order_stays_and_another_ones_is_replaced(tmp_path: Path) -> None:
    place = probe_folder(tmp_path, Slot(0))
    place.mkdir(parents=True)
    write_json(place / ORDER, {"configuration": OF.to_dict(), "kind": "probe"})
    keep(place, OF, completed(OF))
    assert read_json(place / ORDER)["kind"] == "probe"
    assert Measurement.from_dict(read_json(place / ANSWER)) == completed(OF)
    written = (place / ANSWER).stat().st_ino
    keep(place, OF, completed(OF))
    assert (place / ANSWER).stat().st_ino == written, "it is not written again"
    write_json(place / ORDER, {"configuration": {"of": "another version"}})
    keep(place, OF, completed(OF))
    assert read_json(place / ORDER) == {"configuration": OF.to_dict()}


def test_a_search_that_is_killed_between_order_and_measurement_leaves_no_other_one_s_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the losses' reference, whose next training is of another precision."""
    other = configuration(precision="bf16")
    keep(tmp_path, OF, completed(OF))

    def killed_before_the_measurement(path: Path, data: Any) -> None:
        if path.name == ANSWER:
            raise KeyboardInterrupt
        write_json(path, data)

    monkeypatch.setattr(measuring, "write_json", killed_before_the_measurement)
    with pytest.raises(KeyboardInterrupt):
        keep(tmp_path, other, completed(other))
    assert read_trial(tmp_path, 0) is None


def test_a_disturbed_measurement_lies_there_until_its_repeat_does(tmp_path: Path) -> None:
    path, seen = probe_folder(tmp_path, Slot(0)) / ANSWER, list[bool]()
    first = disturbed()
    answers = iter([first, completed(OF)])

    def probe(*_: object) -> Measurement:
        seen.append(path.exists() and bool(read_json(path)["observed_warnings"]))
        return next(answers)

    path.parent.mkdir(parents=True)
    write_json(path, {"of": "an earlier order"})
    measurement = measure(tmp_path, plan(), [], probe, Job(Slot(), OF))
    assert seen == [False, True]
    assert measurement.repeated_because == first.observed_warnings
    assert read_json(path)["repeated_because"]


def test_a_disk_that_refuses_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "probes").write_text("a file")
    with pytest.raises(StorageFailed, match="cannot be written"):
        measure(tmp_path, plan(), [], answering(completed(OF)), Job(Slot(), OF))


def test_a_baseline_that_the_environment_rules_out_is_kept_like_any_other(tmp_path: Path) -> None:
    study = open_study(tmp_path, replace(space(), baseline_problem="bf16: not on this device"), plan(n_trials=1))
    search(study, answering())
    measurement = study.trials[0].measurement
    assert (measurement.outcome, measurement.reason) == (Outcome.UNSUPPORTED, "bf16: not on this device")
    assert read_trial(study.probe_folder(Slot()), 0) == study.trials[0]


# Deadline and bar -----------------------------------------------------------------------------------------------


def test_a_probe_is_told_its_number_and_the_best_speed_so_far(tmp_path: Path) -> None:
    trials = [trial(0, 10.0), trial(1, 30.0), trial(2, 20.0)]
    options = asked_of(tmp_path, trials)
    assert (options.slot.number, options.slot.round) == (3, 0)
    assert options.best_so_far == trials[1].samples_per_second
    assert asked_of(tmp_path / "first", []).best_so_far is None


def test_there_is_no_bar_in_a_confirmation_nor_from_what_is_barred(tmp_path: Path) -> None:
    assert asked_of(tmp_path / "confirmation", [trial(0)], confirmation=1).best_so_far is None
    trials = [trial(0, 10.0), replace(trial(1, 30.0), disqualified_reason="its loss differs")]
    assert asked_of(tmp_path / "barred", trials).best_so_far == trials[0].samples_per_second


@pytest.mark.parametrize(("took", "deadline"), [(1.0, 60.0), (6.0, 60.0), (30.0, 300.0)])
def test_the_deadline_is_ten_times_the_baseline_s_and_at_least_a_minute(
    tmp_path: Path, took: float, deadline: float
) -> None:
    assert asked_of(tmp_path, [trial(0, probe_seconds=took), trial(1, probe_seconds=999.0)]).deadline_s == deadline


def test_a_baseline_that_did_not_train_leaves_the_longest_deadline(tmp_path: Path) -> None:
    failed = Trial(0, OF, ended(Outcome.OUT_OF_MEMORY, probe_seconds=1.0))
    assert asked_of(tmp_path, [failed]).deadline_s == asked_of(tmp_path / "a", []).deadline_s == LONGEST_BASELINE_S


def test_the_baseline_is_given_minutes_and_no_more_than_the_whole_search_has_left(tmp_path: Path) -> None:
    assert asked_of(tmp_path, []).deadline_s == LONGEST_BASELINE_S == 300.0
    probe = answering(completed(OF))
    measure(tmp_path / "timed", plan(), [], probe, Job(Slot(), OF, seconds=40.0))
    assert 30.0 < probe.asked[0][1].deadline_s <= 40.0


def test_a_baseline_that_compiles_is_given_the_time_for_it(tmp_path: Path) -> None:
    compiled = configuration(compile="default")
    assert asked_of(tmp_path, [], of=compiled).deadline_s > LONGEST_BASELINE_S + 60


def test_a_confirmation_has_the_time_that_all_its_micro_steps_need(tmp_path: Path) -> None:
    baseline = trial(0, probe_seconds=30.0)
    many, few = configuration(1, 48), configuration(48, 48)
    assert asked_of(tmp_path / "many", [baseline], of=many, confirmation=1).deadline_s == pytest.approx(300.0 * 48 / 3)
    assert asked_of(tmp_path / "few", [baseline], of=few, confirmation=1).deadline_s == 300.0
    assert asked_of(tmp_path / "probe", [baseline], of=many).deadline_s == 300.0


def test_a_deadline_of_the_user_s_is_everyone_s(tmp_path: Path) -> None:
    for number, trials in enumerate(([], [trial(0, probe_seconds=99.0)])):
        assert asked_of(tmp_path / str(number), trials, probe_timeout_s=12.5).deadline_s == 12.5


# Out of memory in a round -----------------------------------------------------------------------------------------


def test_callbacks_that_failed_or_take_long_are_noted() -> None:
    baseline = trial(callbacks_s=0.0)
    step_s = baseline.measurement.step_time_s or 0.0
    assert list(callback_notes([baseline])) == []
    slow = trial(callbacks_s=step_s / 2)
    failing = trial(1, left_out={"Saves.on_train_end": "PermissionError: no", "Reads": "KeyError: 'loss'"})
    failed, long = callback_notes([slow, failing])
    assert failed.detail == "Saves.on_train_end (PermissionError: no), Reads (KeyError: 'loss')"
    assert long.text == "your callbacks take 50% of a step"
    assert left_out([slow, failing]) == failing.measurement.left_out


def test_a_round_is_not_run_whose_memory_would_run_out_as_another_s_did(tmp_path: Path) -> None:
    ran_out = replace(trial(1, peak_bytes=400 * MIB), confirmations=(out_of_memory(OF, round=1),))
    hungry, lean = trial(2, peak_bytes=390 * MIB), trial(3, peak_bytes=300 * MIB)
    begun = replace(trial(4, peak_bytes=500 * MIB), confirmations=(completed(OF, round=1),))
    trials = [trial(peak_bytes=500 * MIB), ran_out, hungry, lean, begun]
    measurement = needs_too_much(trials, hungry)
    assert measurement is not None
    assert (measurement.outcome, measurement.allowed_bytes) == (Outcome.OUT_OF_MEMORY, ALLOWED)
    assert "trial 1" in measurement.reason
    assert [needs_too_much(trials, other) for other in (trials[0], ran_out, lean, begun)] == [None] * 4


# As requested ---------------------------------------------------------------------------------------------------

JUDGED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    # the baseline's values, what it shows, another trial's values, what that shows -> why it is misconfigured
    "as requested": ({"precision": "fp32"}, {"precision": "fp32"}, {"precision": "bf16"}, {"precision": "bf16"}, ""),
    "another value than requested": (
        {"precision": "fp32"},
        {"precision": "fp32"},
        {"precision": "fp16"},
        {"precision": "fp32"},
        "precision fp16 became fp32",
    ),
    "a baseline's value that became another one": (
        {"precision": "fp32"},
        {"precision": "fp32"},
        {"precision": "fp32"},
        {"precision": "bf16"},
        "precision fp32 became bf16",
    ),
    "what the baseline shows too": (
        {"precision": "fp32"},
        {"precision": "float64"},
        {"precision": "fp32"},
        {"precision": "float64"},
        "",
    ),
    "a value without effect": (
        {"precision": "fp32"},
        {"precision": "float64"},
        {"precision": "bf16"},
        {"precision": "float64"},
        "precision bf16 has no effect: your own settings show float64 too",
    ),
    "the value that the baseline shows already": (
        {"precision": "fp32"},
        {"precision": "bf16"},
        {"precision": "bf16"},
        {"precision": "bf16"},
        "precision bf16 has no effect: your own settings show bf16 too",
    ),
    "a change of some layers": (
        {"precision": "fp32"},
        {"precision": "float64 and fp32"},
        {"precision": "bf16"},
        {"precision": "bf16 and float64"},
        "",
    ),
    "a layer that stays in float32": (
        {"precision": "bf16"},
        {"precision": "bf16 and fp32"},
        {"precision": "fp32"},
        {"precision": "fp32"},
        "",
    ),
    "a loader that decides itself": (
        {"pin_memory": True},
        {"pin_memory": False},
        {"pin_memory": False},
        {"pin_memory": False},
        "pin_memory False has no effect: your own settings show False too",
    ),
    "what a baseline that did not run would have shown": (
        {"precision": "fp32"},
        {},
        {"precision": "fp32"},
        {"precision": "float64"},
        "",
    ),
    "fewer ranks": (
        {"data_parallel_size": 2},
        {},
        {"data_parallel_size": 2},
        {"data_parallel_size": 1},
        "data_parallel_size 2 became 1",
    ),
    "what cannot be seen": ({"liger": "none"}, {"liger": None}, {"liger": "kernels"}, {"liger": None}, ""),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_trial_is_judged_by_what_the_baseline_shows(name: str) -> None:
    own, own_shown, asked, shown, reason = JUDGED[name]
    baseline = trial(of=configuration(**own), settings=own_shown)
    judged = as_requested(completed(OF, asked=asked, settings=shown), baseline)
    assert (judged.outcome is Outcome.COMPLETED, judged.reason) == (not reason, reason)


def test_a_baseline_is_what_it_shows_and_what_has_no_effect_on_it_is_tried_no_more(tmp_path: Path) -> None:
    own, other = (configuration(precision=precision) for precision in ("fp32", "bf16"))
    shows = {"precision": "float64"}
    baseline = measure(
        tmp_path, plan(), [], answering(completed(own, asked=own.values, settings=shows)), Job(Slot(), own)
    )
    assert baseline.feasible
    trials = [Trial(0, own, baseline)]
    judged = measure(
        tmp_path, plan(), trials, answering(completed(other, asked=other.values, settings=shows)), Job(Slot(1), other)
    )
    assert judged.outcome is Outcome.MISCONFIGURED
    ruled_out = configuration(precision="bf16", optimizer="sgd")
    assert implied_by(ruled_out, [*trials, Trial(1, other, judged)]) is not None
    assert [note.text for note in baseline_notes(trials)] == [
        "your training as it is shows precision float64 instead of fp32: trials are compared with that"
    ]
