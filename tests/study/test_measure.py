"""One trial's measuring: its deadline, its bar, its repeats where it was disturbed, and what is on disk of it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Outcome, Trial, read_json, write_json
from autotune.core.slot import Slot
from autotune.judge.dominance import baseline_notes, implied_by
from autotune.probe import ProbeOptions
from autotune.probe.order import ANSWER, ORDER
from autotune.space.settings import SETTINGS
from autotune.study import measure as measuring
from autotune.study.job import Run
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
from tests.makers import ALLOWED, MIB, completed, configuration, ended, out_of_memory, standing_of, trial, warned
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
    of_job = {name: fields.pop(name) for name in ("seconds", "share") if name in fields}
    job = Run(Slot(len(trials), confirmation), fields.pop("of", OF), **of_job)
    measure(folder, plan(**fields), standing_of(trials), probe, job)
    return probe.asked[0][1]


# Disturbed ------------------------------------------------------------------------------------------------------


def test_a_disturbed_measurement_is_made_anew_and_says_why_on_disk_too(tmp_path: Path) -> None:
    probe, before = answering(disturbed(), completed(OF, 10.0)), time.time()
    measurement = measure(tmp_path, plan(), standing_of([trial(0)]), probe, Run(Slot(3), OF))
    assert len(probe.asked) == 2
    assert probe.asked[0] == probe.asked[1]
    assert measurement.samples_per_second == pytest.approx(10.0)
    assert (measurement.repeated_because, measurement.observed_warnings) == (FOREIGN, ())
    assert before <= measurement.started_s <= time.time()
    assert read_trial(probe_folder(tmp_path, Slot(3)), 3) == Trial(3, OF, measurement)


WAS = [trial(number, observed_warnings=FOREIGN) for number in range(STAYS_DISTURBED)]


@pytest.mark.parametrize(
    ("trials", "first", "probes"),
    [
        ([], completed(OF), 1),
        ([], out_of_memory(OF, observed_warnings=FOREIGN), 2),
        ([], ended(Outcome.TIMED_OUT, observed_warnings=FOREIGN), 2),
        ([], completed(OF, observed_warnings=FOREIGN, ended_early=True), 2),
        ([], ended(Outcome.CRASHED, observed_warnings=FOREIGN), 1),
        ([], ended(Outcome.NON_FINITE_LOSS, observed_warnings=FOREIGN), 1),
        (WAS, disturbed(), 1),  # the machine is as it is
        (WAS[1:], disturbed(), 2),
        ([*WAS, trial(5)], disturbed(), 2),
    ],
)
def test_what_a_stranger_may_have_brought_about_is_tried_again(
    tmp_path: Path, trials: list[Trial], first: Measurement, probes: int
) -> None:
    probe = answering(first, completed(OF))
    measure(tmp_path, plan(), standing_of(trials), probe, Run(Slot(len(trials)), OF))
    assert len(probe.asked) == probes


def test_what_stays_disturbed_is_repeated_no_more_than_twice_and_keeps_every_reason(tmp_path: Path) -> None:
    throttled = replace(disturbed(), observed_warnings=warned("throttled"))
    probe = answering(disturbed(), throttled, disturbed(7.0))
    measurement = measure(tmp_path, plan(), standing_of([]), probe, Run(Slot(), OF))
    assert len(probe.asked) == 1 + REPEATS == 3
    assert measurement.samples_per_second == pytest.approx(7.0)
    assert measurement.repeated_because == (*FOREIGN, *warned("throttled"))
    assert measurement.observed_warnings == FOREIGN, "the last one is warned still"


# On disk --------------------------------------------------------------------------------------------------------


def test_what_a_probe_left_unwritten_is_on_disk(tmp_path: Path) -> None:
    measurement = measure(tmp_path, plan(), standing_of([]), answering(completed(OF)), Run(Slot(3), OF))
    assert read_trial(probe_folder(tmp_path, Slot(3)), 3) == Trial(3, OF, measurement)


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
    measurement = measure(tmp_path, plan(), standing_of([]), probe, Run(Slot(), OF))
    assert seen == [False, True]
    assert measurement.repeated_because == first.observed_warnings
    assert read_json(path)["repeated_because"]


# Deadline and bar -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trials", "asked", "best"),
    [
        ([], {}, None),
        ([trial(0, 10.0), trial(1, 30.0), trial(2, 20.0)], {}, 1),
        ([trial(0), trial(1, 30.0)], {"share": 0.9}, 1),  # on a slower device
        ([trial(0)], {"confirmation": 1}, None),
        ([trial(0, 10.0), replace(trial(1, 30.0), disqualified_reason="its loss differs")], {}, 0),
    ],
)
def test_a_probe_is_told_the_best_speed_so_far(
    tmp_path: Path, trials: list[Trial], asked: dict[str, Any], best: int | None
) -> None:
    options = asked_of(tmp_path, trials, **asked)
    assert options.slot == Slot(len(trials), asked.get("confirmation", 0))
    if best is None:
        assert options.best_so_far is None
    else:
        bar, expected = options.best_so_far, trials[best].samples_per_second
        share = asked.get("share", 1.0)
        assert (bar, bar.low) == pytest.approx((share * expected, share * expected.low))


LASTING = [trial(0, probe_seconds=30.0)]
MANY = configuration(1, 48)


@pytest.mark.parametrize(
    ("trials", "asked", "deadline_s"),
    [
        ([trial(0, probe_seconds=1.0), trial(1, probe_seconds=999.0)], {}, 60.0),
        (LASTING, {}, 300.0),
        ([], {}, LONGEST_BASELINE_S),
        ([Trial(0, OF, ended(Outcome.OUT_OF_MEMORY, probe_seconds=1.0))], {}, LONGEST_BASELINE_S),
        (
            [],
            {"of": configuration(compile="default")},
            LONGEST_BASELINE_S + 10 * SETTINGS["compile"].costs.seconds("default"),
        ),
        (LASTING, {"of": MANY}, 300.0),
        (LASTING, {"of": MANY, "confirmation": 1}, 300.0 * 48 / 3),  # all its micro-steps
        (LASTING, {"of": configuration(48, 48), "confirmation": 1}, 300.0),
        ([], {"probe_timeout_s": 12.5}, 12.5),
        (LASTING, {"probe_timeout_s": 12.5}, 12.5),
        (LASTING, {"seconds": 40.0}, 40.0),
    ],
)
def test_the_deadline_is_ten_times_the_baseline_s_and_at_least_a_minute(
    tmp_path: Path, trials: list[Trial], asked: dict[str, Any], deadline_s: float
) -> None:
    assert asked_of(tmp_path, trials, **asked).deadline_s == pytest.approx(deadline_s, abs=5.0)


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


@pytest.mark.parametrize(
    ("name", "own", "own_shown", "asked", "shown", "reason"),
    [
        ("precision", "fp32", "fp32", "bf16", "bf16", ""),
        ("precision", "fp32", "fp32", "fp16", "fp32", "precision fp16 became fp32"),
        ("precision", "fp32", "fp32", "fp32", "bf16", "precision fp32 became bf16"),
        ("precision", "fp32", "float64", "fp32", "float64", ""),
        (
            "precision",
            "fp32",
            "float64",
            "bf16",
            "float64",
            "precision bf16 has no effect: your own settings show float64 too",
        ),
        ("precision", "fp32", "bf16", "bf16", "bf16", "precision bf16 has no effect: your own settings show bf16 too"),
        ("precision", "fp32", "float64 and fp32", "bf16", "bf16 and float64", ""),  # a change of some layers
        ("precision", "bf16", "bf16 and fp32", "fp32", "fp32", ""),  # a layer stays in float32
        ("pin_memory", True, False, False, False, "pin_memory False has no effect: your own settings show False too"),
        ("precision", "fp32", ..., "fp32", "float64", ""),  # the baseline did not run
        ("data_parallel_size", 2, ..., 2, 1, "data_parallel_size 2 became 1"),
        ("liger", "none", None, "kernels", None, ""),  # it cannot be seen
    ],
)
def test_a_trial_is_judged_by_what_the_baseline_shows(
    name: str, own: Any, own_shown: Any, asked: Any, shown: Any, reason: str
) -> None:
    baseline = trial(of=configuration(**{name: own}), settings={} if own_shown is ... else {name: own_shown})
    judged = as_requested(completed(OF, asked={name: asked}, settings={name: shown}), baseline)
    assert (judged.outcome is Outcome.COMPLETED, judged.reason) == (not reason, reason)


def test_a_baseline_is_what_it_shows_and_what_has_no_effect_on_it_is_tried_no_more(tmp_path: Path) -> None:
    own, other = (configuration(precision=precision) for precision in ("fp32", "bf16"))
    shows = {"precision": "float64"}
    its = answering(completed(own, asked=own.values, settings=shows))
    baseline = measure(tmp_path, plan(), standing_of([]), its, Run(Slot(), own))
    assert baseline.feasible
    trials = [Trial(0, own, baseline)]
    its = answering(completed(other, asked=other.values, settings=shows))
    judged = measure(tmp_path, plan(), standing_of(trials), its, Run(Slot(1), other))
    assert judged.outcome is Outcome.MISCONFIGURED
    ruled_out = configuration(precision="bf16", optimizer="sgd")
    assert implied_by(ruled_out, [*trials, Trial(1, other, judged)]) is not None
    assert [note.text for note in baseline_notes(trials)] == [
        "your training as it is shows precision float64 instead of fp32: trials are compared with that"
    ]
