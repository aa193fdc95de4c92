"""The loop: what is probed, what is told, what is kept, and how it goes on after any end."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from autotune.core import Configuration, Measurement, Outcome, Trial, write_json
from autotune.core.errors import SearchFailed, StorageFailed, StudyInUse, StudyMismatch, TimeIsOver
from autotune.core.note import Note, NoteKind
from autotune.core.request import SAMPLERS
from autotune.core.slot import Slot, SlotKind
from autotune.core.time_limit import GRACE
from autotune.judge.constants import MOST_TRIED, SAME_CRASHES
from autotune.judge.dominance import TOO_FEW_DEVICES, crash_notes, crashing_values
from autotune.judge.standing import Standing
from autotune.judge.substitute import compared_with
from autotune.probe import Probe, ProbeOptions
from autotune.probe.order import ANSWER, ORDER
from autotune.sampler.physics import PhysicsSampler
from autotune.sampler.policy import Choice, Why
from autotune.sampler.situation import ALONE, Situation
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from autotune.study.crashes import CRASHES_THAT_END
from autotune.study.finish import missing_proof
from autotune.study.job import Run
from autotune.study.loop import import_trials, open_study, search
from autotune.study.plan import Plan, Progress
from autotune.study.store import (
    REQUEST,
    check_identity,
    is_unmeasured,
    locked,
    read_prospects,
    read_trial,
    remove_study,
)
from autotune.study.study import Study
from tests import makers
from tests.clocks import SimulatedTime, TimedProbe, taking
from tests.makers import ALLOWED, MIB, completed, ended, machine, out_of_memory, space, standing_of
from tests.probe.processes import bounded
from tests.replay_probe import ReplayProbe, recorded

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.timeout(60)
"""A loop that never ends fails its test."""


def opened(folder: Path, among: SearchSpace | None = None, **plan: Any) -> Study:
    known = {"n_trials": 5, "objective": "samples_per_second", "sampler": "random", "confirmation_rounds": 0}
    made = Plan(allowed_bytes=ALLOWED, **known | plan)
    return open_study(folder, among or space(), made)


def run(folder: Path, probe: Probe, among: SearchSpace | None = None, **plan: Any) -> tuple[Study, str]:
    """Open or go on with the study in this folder, search, and give it back with its statement."""
    with locked(folder):
        study = opened(folder, among, **plan)
        return study, search(study, probe).text


def replay(world: Callable[[Configuration], Measurement] = machine) -> ReplayProbe:
    return ReplayProbe(world)


def probed(probe: ReplayProbe) -> list[Configuration]:
    """What was asked of a probe, confirmations aside."""
    return [configuration for configuration, options in probe.asked if not options.slot.round]


class Stops:
    """A probe that is interrupted at its nth call (from 1), after writing its answer or before."""

    def __init__(self, at: int, folder: Path | None = None) -> None:
        self.inner, self.at, self.folder = replay(), at, folder

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        measurement = self.inner(configuration, options)
        if len(self.inner.asked) == self.at:
            if self.folder is not None:
                place = self.folder / "probes" / f"{options.slot.number:04d}"
                place.mkdir(parents=True, exist_ok=True)
                write_json(place / ORDER, {"configuration": configuration.to_dict()})
                write_json(place / ANSWER, measurement.to_dict())
            raise KeyboardInterrupt
        return measurement


class ChoosesFirst(PhysicsSampler):
    """The sampler of a study, which chooses this configuration right after the baseline."""

    def __init__(self, study: Study, first: Configuration) -> None:
        super().__init__(study.space, study.warm_start)
        self.first = first

    def choose(self, standing: Standing, situation: Situation = ALONE) -> Choice:
        """The configuration after the baseline, else as the sampler does."""
        if len(standing.trials) == 1 and standing.trials[0].configuration != self.first:
            return Choice(self.first, Why.NEW)
        return super().choose(standing, situation)


def interrupted(folder: Path, at: int, written: bool = False, **plan: Any) -> Stops:
    probe = Stops(at, folder if written else None)
    with pytest.raises(KeyboardInterrupt):
        run(folder, probe, **plan)
    return probe


# One search -----------------------------------------------------------------------------------------------------


def test_a_baseline_that_is_no_proposal_is_probed_once_and_never_proposed(tmp_path: Path) -> None:
    baseline = Configuration.exact(8, 8, {"checkpointing": "full"})
    narrow = space(baseline, micro_batch_size=(1, 2), checkpointing=("none", "full"))
    study, _ = run(tmp_path, replay(), narrow, n_trials=20, sampler="brute-force")
    assert study.trials[0].configuration == baseline
    assert {trial.configuration for trial in study.trials[1:]} == set(narrow)


@pytest.mark.parametrize("n_trials", [1, 6])
def test_the_baseline_is_trial_0_and_counts_as_one(tmp_path: Path, n_trials: int) -> None:
    probe = replay()
    study, stop_reason = run(tmp_path, probe, n_trials=n_trials)
    assert probed(probe)[0] == study.trials[0].configuration == space().baseline
    assert len(probed(probe)) == n_trials
    assert [trial.number for trial in study.trials] == [*range(n_trials)]
    assert stop_reason == f"the budget of {n_trials} trials is used"


def test_every_trial_is_on_disk_before_the_next_starts(tmp_path: Path) -> None:
    def world(configuration: Configuration) -> Measurement:
        written = len(list((tmp_path / "probes").glob(f"*/{ANSWER}")))
        assert written == len(probe.asked) - 1
        return machine(configuration)

    probe = replay(world)
    run(tmp_path, probe)


def test_a_proposal_that_is_known_is_answered_at_once_and_not_counted(tmp_path: Path) -> None:
    probe = replay()
    study, _ = run(tmp_path, probe, n_trials=6)
    assert len(set(probed(probe))) == len(probed(probe))
    answered = [record for record in study.sampler.study.get_trials() if "answered_by" in record.user_attrs]
    assert len(answered) == study.sampler.duplicates > 0
    assert all(item.state is TrialState.COMPLETE for item in answered)


def test_what_an_out_of_memory_settles_is_never_probed(tmp_path: Path) -> None:
    tight = space(micro_batch_size=(1, 2, 4, 8), global_batch_size=16)

    def world(configuration: Configuration) -> Measurement:
        return completed(configuration) if configuration.micro_batch_size < 4 else out_of_memory(configuration)

    probe = replay(world)
    run(tmp_path, probe, tight, n_trials=50)
    refused = [item for item in probed(probe) if item.micro_batch_size >= 4]
    for earlier, later in pairwise(refused):
        assert later.micro_batch_size < earlier.micro_batch_size or "full" in str(later)


def test_three_crashes_of_a_value_bar_it_and_the_search_goes_on(tmp_path: Path) -> None:
    def world(configuration: Configuration) -> Measurement:
        if configuration.values["checkpointing"] == "full":
            return ended(Outcome.CRASHED, reason="illegal instruction", log_tail="Traceback\n")
        return machine(configuration)

    probe = replay(world)
    study, stop_reason = run(tmp_path, probe, n_trials=100, sampler="brute-force")
    crashed = [trial for trial in study.trials if trial.measurement.outcome is Outcome.CRASHED]
    assert len(crashed) == SAME_CRASHES
    assert {trial.configuration.values["checkpointing"] for trial in crashed} == {"full"}
    assert [values for values, _ in crashing_values(study.trials)] == [{"checkpointing": "full"}]
    [note] = crash_notes(study.trials)
    assert note.detail == "checkpointing full (illegal instruction)"
    assert "measured or ruled out" in stop_reason


def test_one_crash_again_and_again_whatever_the_values_ends_the_search_and_shows_it(tmp_path: Path) -> None:
    among = space(checkpointing=("none", "full"), workers=(0, 1))
    ran = [*among][::5]  # each value at least once
    assert {item for one in ran for item in one.values.items()} >= {("checkpointing", "full"), ("workers", 1)}
    assert {item.micro_batch_size for item in ran} == {1, 2, 4, 8}
    others = [item for item in among if item not in ran]
    crashes = [
        ended(Outcome.CRASHED, reason=f"assertion failed at row {number}", log_tail="Traceback\n  the last line\n")
        for number in range(CRASHES_THAT_END)
    ]
    told = [*((item, machine(item)) for item in ran), *zip(others, crashes, strict=False)]
    probe = replay()
    with locked(tmp_path):
        study = opened(tmp_path, among)
        for number, item in enumerate(told):
            study.ledger.record(Slot(number), *item)
        with pytest.raises(SearchFailed, match=f"same crash came {CRASHES_THAT_END} times") as caught:
            search(study, probe)
        assert "the last line" in str(caught.value)
        assert not probe.asked
        study.ledger.standing = standing_of(study.trials[:-1])
        assert search(study, probe), "one fewer does not"


def test_where_nothing_has_run_the_same_crash_three_times_running_ends_the_search(tmp_path: Path) -> None:
    def world(configuration: Configuration) -> Measurement:
        if configuration == space().baseline:
            return out_of_memory(configuration)
        return ended(Outcome.CRASHED, reason="illegal instruction")

    probe = replay(world)
    with pytest.raises(SearchFailed, match="same crash came 3 times"):
        run(tmp_path, probe, n_trials=8, sampler="brute-force")


def test_different_crashes_do_not_end_the_search(tmp_path: Path) -> None:
    def world(configuration: Configuration) -> Measurement:
        crash = ended(Outcome.CRASHED, reason=str(configuration).replace("2", "two").replace("4", "four"))
        return machine(configuration) if configuration == space().baseline else crash

    study, _ = run(tmp_path, replay(world), n_trials=5)
    assert len(study.trials) == 5


def test_a_baseline_that_crashes_ends_the_search_with_one_line_that_names_its_log(tmp_path: Path) -> None:
    log = "".join(f"line {number}\n" for number in range(100))
    probe = replay(lambda configuration: ended(Outcome.CRASHED, reason="segmentation fault", log_tail=log))
    with pytest.raises(SearchFailed, match="baseline crashed: segmentation fault") as caught:
        run(tmp_path, probe)
    assert "line 99" in str(caught.value)
    assert "line 98" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "probes/0000/log.txt" in str(caught.value)
    assert len(probe.asked) == 1


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("transformers/models/rwkv/modeling.py", "The model's own code raised it (modeling.py, line 7)"),
        ("mine/model.py", "Fix the cause"),
    ],
)
def test_a_crash_within_the_model_s_code_is_not_called_the_user_s(tmp_path: Path, file: str, advice: str) -> None:
    traceback = f'Traceback (most recent call last):\n  File "/lib/{file}", line 7, in forward\nValueError: x\n'
    crash = ended(Outcome.CRASHED, reason="ValueError: x", log_tail=traceback)
    with pytest.raises(SearchFailed) as caught:
        run(tmp_path, replay(lambda configuration: crash))
    assert advice in caught.value.advice
    assert "\n" not in str(caught.value)


def test_a_baseline_that_cannot_run_here_is_a_trial_without_a_probe(tmp_path: Path) -> None:
    probe = replay()
    among = space(precision=("fp32", "bf16"), baseline_problem="bf16: not on this device")
    study, _ = run(tmp_path, probe, among, n_trials=3)
    assert study.trials[0].measurement.outcome is Outcome.UNSUPPORTED
    assert study.trials[0].measurement.reason == "bf16: not on this device"
    assert len(probe.asked) == 2


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_space_is_searched_to_its_end_by_every_sampler(tmp_path: Path, sampler: str) -> None:
    probe = replay()
    # Ours would end before, once nothing can be won.
    study, stop_reason = run(tmp_path, probe, n_trials=100, sampler=sampler, margin=-1.0)
    assert stop_reason.startswith(
        ("all configurations have been measured or ruled out", "no untested configuration is likely to fit")
    )
    assert len(set(probed(probe))) == len(probed(probe))
    assert set(probed(probe)) | {c for c in space() if not machine(c).feasible} == set(space())
    best = study.standing.answer
    assert best is not None
    assert best.configuration == max(space(), key=lambda c: float(machine(c).samples_per_second or 0))


def test_those_who_watch_see_every_trial_and_the_end(tmp_path: Path) -> None:
    seen: list[Progress] = []
    with locked(tmp_path):
        search(opened(tmp_path, n_trials=3, confirmation_rounds=1), replay(), seen.append)
    kinds = [item.kind for item in seen]
    assert kinds[:6] == ["probing", "trial"] * 3
    assert kinds[-1] == "done"
    assert set(kinds[6:-1]) == {"confirming", "confirmed"}
    assert [item.probes_left for item in seen if item.kind == "trial"] == [2, 1, 0]
    assert seen[-1].best is not None
    confirmed = [item for item in seen if item.kind == "confirmed"]
    assert confirmed
    for trial in confirmed:
        assert trial.trial in trial.trials, "the round that just ended counts"
    assert confirmed[0].best is None, "one round alone cannot be compared"
    assert confirmed[-1].best in confirmed[-1].trials


# Going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "brute-force"])
def test_a_larger_budget_goes_on_with_nothing_probed_twice(tmp_path: Path, sampler: str) -> None:
    probe = replay()
    run(tmp_path, probe, n_trials=3, sampler=sampler)
    study, _ = run(tmp_path, probe, n_trials=6, sampler=sampler)
    assert len(probed(probe)) == 6
    assert len(set(probed(probe))) == 6
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3, 4, 5]
    assert [trial.configuration for trial in study.trials] == probed(probe)


def test_what_the_untried_could_still_win_is_kept_after_each_trial_and_over_runs(tmp_path: Path) -> None:
    run(tmp_path, replay(), n_trials=3, sampler="physics")
    first = read_prospects(tmp_path)
    assert sorted(first) == [0, 1, 2]
    assert all(item.max_gain_if_fits >= item.max_gain >= 0 for item in first.values())
    study, _ = run(tmp_path, replay(), n_trials=5, sampler="physics")
    again = read_prospects(tmp_path)
    assert sorted(again) == [trial.number for trial in study.trials]
    assert [again[number] for number in (0, 1)] == [first[number] for number in (0, 1)]
    remove_study(tmp_path, [])
    assert not read_prospects(tmp_path)


@pytest.mark.parametrize("at", [1, 3])
def test_what_is_interrupted_again_and_again_is_asked_first(tmp_path: Path, at: int) -> None:
    lost = probed(interrupted(tmp_path, at).inner)[-1]
    for _ in range(2):
        assert probed(interrupted(tmp_path, 1).inner) == [lost]
    study, _ = run(tmp_path, replay())
    assert study.trials[at - 1].configuration == lost
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [1, 3])
def test_a_measurement_on_disk_is_not_made_again(tmp_path: Path, at: int) -> None:
    before = interrupted(tmp_path, at, written=True)
    after = replay()
    run(tmp_path, after)
    assert len(probed(before.inner)) == at
    assert len(probed(after)) == 5 - at
    assert not set(probed(after)) & set(probed(before.inner))


@pytest.mark.parametrize(
    ("number", "content"), [(0, b""), (0, None), (2, b"{ cut off"), (2, b"null"), (2, b'{"a": 1}'), (2, b"\x00\xff")]
)
def test_a_trial_that_cannot_be_read_is_measured_again_under_its_number(
    tmp_path: Path, number: int, content: bytes | None
) -> None:
    first, _ = run(tmp_path, replay(), n_trials=4)
    path = tmp_path / "probes" / f"{number:04d}" / ANSWER
    path.unlink() if content is None else path.write_bytes(content)
    again = replay()
    study, _ = run(tmp_path, again, n_trials=4)
    assert probed(again) == [first.trials[number].configuration]
    assert [trial.configuration for trial in study.trials] == [trial.configuration for trial in first.trials]
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3]
    nobody = replay()
    assert run(tmp_path, nobody, n_trials=4)[0].trials == study.trials
    assert nobody.asked == []


def test_an_order_that_cannot_be_read_is_measured_again_too(tmp_path: Path) -> None:
    first, _ = run(tmp_path, replay(), n_trials=3)
    (tmp_path / "probes" / "0000" / ORDER).write_text("{")
    study, _ = run(tmp_path, replay(), n_trials=4)
    assert [trial.configuration for trial in study.trials[:3]] == [trial.configuration for trial in first.trials]


def test_a_damaged_baseline_is_measured_first_and_keeps_its_rounds(tmp_path: Path) -> None:
    first, _ = run(tmp_path, replay(), n_trials=3, confirmation_rounds=2)
    (tmp_path / "probes" / "0000" / ANSWER).write_text("{")
    seen: list[Progress] = []
    with locked(tmp_path):
        study = opened(tmp_path, n_trials=4, confirmation_rounds=2)
        search(study, replay(), seen.append)
    assert seen[0].message.startswith("resuming with 2 trials; probes/0000/measurement.json cannot be read (")
    assert seen[0].message.endswith("your own settings are measured again")
    assert [progress.number for progress in seen if progress.kind == "trial"] == [0, 3]
    assert first.trials[0].confirmations
    assert study.trials[0].confirmations == first.trials[0].confirmations


def test_a_damaged_round_is_named_and_measured_again(tmp_path: Path) -> None:
    first, _ = run(tmp_path, replay(), n_trials=3, confirmation_rounds=2)
    path = tmp_path / "probes" / "0000" / "confirmation-1" / ANSWER
    path.write_text("{")
    seen: list[Progress] = []
    with locked(tmp_path):
        study = opened(tmp_path, n_trials=3, confirmation_rounds=2)
        search(study, replay(), seen.append)
    assert "probes/0000/confirmation-1/measurement.json cannot be read (" in seen[0].message
    assert study.trials[0].rounds == first.trials[0].rounds
    assert read_trial(path.parents[1], 0) == study.trials[0]


def test_the_sampler_may_change_between_runs(tmp_path: Path) -> None:
    for number, sampler in enumerate(SAMPLERS, start=2):
        study, _ = run(tmp_path, replay(), n_trials=number, sampler=sampler, margin=-1.0)
    assert len(study.trials) == 1 + len(SAMPLERS)


def test_trials_of_an_earlier_study_of_the_same_question_are_taken_over(tmp_path: Path) -> None:
    first, ended_with = run(tmp_path / "one", replay(), n_trials=6, sampler="physics", confirmation_rounds=2)
    with locked(tmp_path / "two"):
        second = opened(tmp_path / "two", n_trials=6, sampler="physics", confirmation_rounds=2)
        assert import_trials(second, first.trials) == len(first.trials)
        probe, seen = replay(), list[Progress]()
        stop_reason = search(second, probe, seen.append).text
    assert "an earlier search" in seen[0].message, "where they come from"
    assert probe.asked == [], "0 probes and no confirmation: all of it is known"
    assert second.trials == first.trials
    assert stop_reason == ended_with
    again, _ = run(tmp_path / "two", probe, n_trials=6, sampler="physics", confirmation_rounds=2)
    assert (again.trials, probe.asked) == (first.trials, []), "what was taken over is on disk like any other trial"


@pytest.mark.parametrize(
    "failed",
    [
        ended(Outcome.OUT_OF_MEMORY, allowed_bytes=ALLOWED // 2),
        ended(Outcome.TIMED_OUT),
        ended(Outcome.UNSUPPORTED, where=TOO_FEW_DEVICES),
    ],
)
def test_a_trial_whose_probe_or_round_may_end_otherwise_now_is_not_taken_over(
    tmp_path: Path, failed: Measurement
) -> None:
    one = space()
    baseline, other = makers.trial(of=one.baseline), one.configuration({"micro_batch_size": 4, "checkpointing": "none"})
    for number, again in enumerate([Trial(1, other, failed), Trial(1, other, completed(other), (failed,))]):
        study = opened(tmp_path / str(number), one)
        assert import_trials(study, [baseline, again]) == 1
        assert import_trials(study, [baseline]) == 0, "it has trials"


@pytest.mark.parametrize(("peak", "taken_over"), [(ALLOWED, 3), (ALLOWED + MIB, 2)])
def test_what_ended_early_is_not_taken_over_if_what_was_faster_may_not_fit_any_more(
    tmp_path: Path, peak: int, taken_over: int
) -> None:
    one = space()
    baseline = makers.trial(0, of=one.baseline)
    faster = makers.trial(1, 20.0, peak, one.configuration({"micro_batch_size": 8, "checkpointing": "none"}))
    slower_of = one.configuration({"micro_batch_size": 4, "checkpointing": "none"})
    slower = makers.trial(2, 15.0, of=slower_of, ended_early=True)
    with locked(tmp_path):
        study = opened(tmp_path, one)
        assert import_trials(study, [baseline, faster, slower]) == taken_over
    assert [trial.feasible for trial in study.trials] == [True, peak == ALLOWED, True][:taken_over]


def test_a_short_run_gets_the_estimates_pick_without_further_probes(tmp_path: Path) -> None:
    probe = replay()
    study, stop_reason = run(tmp_path, probe, n_trials=20, sampler="physics", training_steps=3)
    assert len(study.trials) == 1
    assert stop_reason.startswith("your 3 steps take about 2 s: another probe of about ")
    assert "estimated fastest: " in stop_reason


# Confirmation ---------------------------------------------------------------------------------------------------


def confirming(world: Callable[[Configuration, ProbeOptions], Measurement]) -> tuple[Probe, list[tuple[int, int]]]:
    """A probe of this world, and the (number, round) of every confirmation it was asked for."""
    asked: list[tuple[int, int]] = []

    def probe(configuration: Configuration, options: ProbeOptions) -> Measurement:
        if options.slot.round and options.slot.kind is SlotKind.TRIAL:
            asked.append((options.slot.number, options.slot.round))
        return world(configuration, options)

    return probe, asked


def alike(configuration: Configuration, options: ProbeOptions) -> Measurement:
    """All as fast as one another but for the baseline, and always at exactly that speed."""
    speed = 5.0 if configuration == space().baseline else 10.0
    return completed(configuration, speed, spread=1e-4, probe_seconds=10.0)  # side by side, however busy the machine


@pytest.mark.parametrize("sampler", ["physics", "random"])
def test_the_fastest_and_the_baseline_are_measured_again_in_turn_and_all_is_on_disk(
    tmp_path: Path, sampler: str
) -> None:
    probe, asked = confirming(alike)
    study, stop_reason = run(tmp_path, probe, n_trials=2, sampler=sampler, confirmation_rounds=3)
    assert asked == [(1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)], "pair by pair, from what was measured last"
    assert stop_reason == "the budget of 2 trials is used"
    assert study.standing.is_shown(study.trials[1])
    for trial in study.trials:
        assert read_trial(study.probe_folder(Slot(trial.number)), trial.number) == trial
        assert study.probe_folder(Slot(trial.number, 2)).name == "confirmation-2"


@pytest.mark.parametrize("sampler", ["physics", "random"])
def test_without_confirmation_rounds_nothing_is_measured_again_and_all_that_may_be_faster_is_tried(
    tmp_path: Path, sampler: str
) -> None:
    def noisy(configuration: Configuration, options: ProbeOptions) -> Measurement:
        """No two can be told apart: measuring them again would be worth most."""
        return completed(configuration, 10.0 + options.slot.number % 2, spread=0.2)

    probe, asked = confirming(noisy)
    study, stop_reason = run(tmp_path, probe, n_trials=5, sampler=sampler, confirmation_rounds=0)
    assert asked == []
    assert len(study.trials) == 5
    assert stop_reason == "the budget of 5 trials is used"


def test_a_winner_that_does_not_learn_is_replaced_by_another_one(tmp_path: Path) -> None:
    among = space(precision=("fp32", "bf16"), checkpointing=("none", "full"))

    def world(configuration: Configuration, _: ProbeOptions) -> Measurement:
        learns = configuration.values["precision"] == "fp32"
        losses = tuple(3.0 - 0.1 * step * learns for step in range(8))
        return replace(machine(configuration), losses=losses)

    study, _ = run(tmp_path, world, among, n_trials=20, sampler="physics", confirmation_rounds=2)
    fastest = max((trial for trial in study.trials if trial.feasible), key=lambda trial: trial.samples_per_second or 0)
    assert fastest.configuration.values["precision"] == "bf16"
    assert fastest.disqualified_reason
    best = study.standing.answer
    assert best is not None
    assert best.number
    assert best.configuration.values["precision"] == "fp32"
    assert study.standing.is_shown(best)


@pytest.mark.parametrize("sampler", ["physics", "tpe"])
def test_a_baseline_that_does_not_fit_is_replaced_by_the_least_change_that_does(tmp_path: Path, sampler: str) -> None:
    among = space(Configuration.exact(8, 8, {"checkpointing": "none"}), (1, 2, 4, 8), checkpointing=("none", "full"))
    probe, _ = confirming(lambda configuration, _: machine(configuration))
    study, _ = run(tmp_path, probe, among, n_trials=20, sampler=sampler, confirmation_rounds=2)
    assert not study.trials[0].feasible
    assert study.trials[1].configuration == Configuration.exact(8, 1, {"checkpointing": "none"})
    rival, best = compared_with(study.trials), study.standing.answer
    assert rival is not None
    assert best is not None
    assert rival.configuration.values["checkpointing"] == "none"
    assert best is rival or standing_of([rival, best]).is_shown(best)


def test_its_substitute_is_the_largest_that_is_expected_to_fit(tmp_path: Path) -> None:
    among = space(Configuration.exact(8, 8, {"checkpointing": "none"}), (1, 2, 4, 8), checkpointing=("none", "full"))
    with locked(tmp_path):
        study = opened(tmp_path, among, n_trials=3, sampler="physics")
        study.start_from(WarmStart(ALLOWED, lambda one: 300.0 * one.micro_batch_size * MIB))
        search(study, lambda configuration, _: machine(configuration))
    assert [study.trials[at].configuration.micro_batch_size for at in (0, 1)] == [8, 2]


def test_no_more_than_a_few_substitutes_are_tried(tmp_path: Path) -> None:
    among = space(Configuration.exact(8, 8, {"checkpointing": "none"}), (8,), checkpointing=("none", "full"))
    study, _ = run(tmp_path, lambda configuration, _: out_of_memory(configuration), among, n_trials=20)
    assert compared_with(study.trials) is None
    assert len(study.trials) <= 1 + MOST_TRIED


def test_a_search_goes_on_where_what_its_probes_found_runs_out_of_memory_in_the_rounds(tmp_path: Path) -> None:
    """Batches differ in shape: rounds need half as much again as probes. Without further probes the baseline would win."""

    def world(configuration: Configuration, options: ProbeOptions) -> Measurement:
        micro, is_full = configuration.micro_batch_size, configuration.values["checkpointing"] == "full"
        peak = (100 + 100 * micro * (0.5 if is_full else 1.0)) * (1.5 if options.slot.round else 1.0)
        return recorded(configuration, 10 * micro**0.5 * (0.9 if is_full else 1.0), int(peak * MIB), ALLOWED, 1e-4)

    with locked(tmp_path):
        study = opened(tmp_path, n_trials=2, sampler="physics", confirmation_rounds=2)
        study.sampler = ChoosesFirst(study, Configuration.exact(8, 8, {"checkpointing": "none"}))
        stop_reason = search(study, world).text
    best = study.standing.answer
    assert best is not None
    assert (best.number, best.confirmed) == (2, True)
    assert len(study.trials) == study.plan.probes(study.trials) == 3
    assert stop_reason.startswith("the budget of 2 trials is used; 1 more for trials that ran out of memory in a round")


def test_what_may_not_fit_is_noted(tmp_path: Path) -> None:
    with locked(tmp_path):
        study = opened(tmp_path, n_trials=3)
        study.ledger.begin(Run(Slot(), study.space.baseline, risk=0.6))
        for each in (study, opened(tmp_path, n_trials=3)):
            assert each.risk_notes() == [Note(NoteKind.RISK, {"trial": 0, "share": 0.6})]


@pytest.mark.parametrize("after", [2, 3])
def test_a_search_that_is_killed_repeats_nothing(tmp_path: Path, after: int) -> None:
    asked, killed = list[Slot](), list[Slot]()

    def probe(configuration: Configuration, options: ProbeOptions) -> Measurement:
        if len(asked) == after and not killed:
            killed.append(options.slot)
            raise KeyboardInterrupt
        asked.append(options.slot)
        return alike(configuration, options)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, probe, n_trials=2, confirmation_rounds=3)
    study, _ = run(tmp_path, probe, n_trials=2, confirmation_rounds=3)
    assert len({*asked}) == len(asked)
    assert {*asked} == {Slot(trial.number, at) for trial in study.trials for at in (0, *trial.rounds)}
    assert study.standing.is_shown(study.trials[1])


def test_a_confirmed_search_is_not_confirmed_again(tmp_path: Path) -> None:
    first, ended_with = run(tmp_path, replay(), n_trials=3, confirmation_rounds=2)
    nobody = replay()
    study, stop_reason = run(tmp_path, nobody, n_trials=3, confirmation_rounds=2)
    assert nobody.asked == []
    assert (study.trials, stop_reason) == (first.trials, ended_with)
    assert study.standing.answer.confirmed  # type: ignore[union-attr]


# The folder -----------------------------------------------------------------------------------------------------


def test_a_study_is_locked_by_one_process(tmp_path: Path) -> None:
    code = "import fcntl, sys; fcntl.flock(f := open(sys.argv[1], 'a'), 2); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with bounded(holder):
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StudyInUse) as caught, locked(tmp_path):
            pass
        holder.communicate(timeout=60)
    assert caught.value.advice
    with locked(tmp_path):
        pass


def test_a_disk_without_locks_is_not_a_study_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with (
        pytest.raises(StorageFailed, match=r"cannot be written or locked: No locks available.*local disk"),
        locked(tmp_path),
    ):
        pass


def test_the_same_name_with_another_identity_is_refused_showing_the_difference(tmp_path: Path) -> None:
    known = {"task": "causal-lm", "environment": {"driver": "1", "threads": 2}, "space": {"workers": [0]}}
    write_json(tmp_path / REQUEST, {"identity": known})
    check_identity(tmp_path, json.loads(json.dumps(known)))
    other = {**known, "environment": {"driver": "2", "threads": 2}, "space": {"workers": [0], "precision": ["x" * 99]}}
    with pytest.raises(StudyMismatch) as caught:
        check_identity(tmp_path, other)
    said = str(caught.value)
    assert "this machine: driver was 1, is now 2" in said
    assert "search space" not in said, "it follows from the machine"
    assert "threads" not in said
    assert "\n" not in said
    assert "x" * 61 not in said
    assert "--fresh" in said


@pytest.mark.parametrize("content", ["{", "null", '{"request": 1}', '{"identity": 5}'])
def test_a_damaged_study_is_said_to_be_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / REQUEST).write_text(content)
    with pytest.raises(StorageFailed, match="damaged") as caught:
        check_identity(tmp_path, {})
    assert "--fresh deletes what was measured" in str(caught.value)


def test_measurements_without_their_request_are_nobody_s(tmp_path: Path) -> None:
    check_identity(tmp_path, {})
    (tmp_path / "probes" / "0000").mkdir(parents=True)
    write_json(tmp_path / "probes" / "0000" / ANSWER, {})
    with pytest.raises(StorageFailed, match=r"request\.json is damaged: it is missing"):
        check_identity(tmp_path, {})


def test_a_study_is_removed_with_nothing_else_in_its_folder(tmp_path: Path) -> None:
    run(tmp_path, replay(), n_trials=2)
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "summary.md").write_text("report")
    remove_study(tmp_path, ["summary.md"])
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.txt", ".lock"}
    remove_study(tmp_path, ["summary.md"])
    study, _ = run(tmp_path, replay(), n_trials=2)
    assert len(study.trials) == 2


FILL = """
import resource, sys
from pathlib import Path
from autotune.core.errors import StorageFailed
from tests.study.test_loop import replay, run
folder = Path(sys.argv[1])
run(folder, replay(), n_trials=2)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    run(folder, replay(), n_trials=8)
except StorageFailed as error:
    assert error.advice
    print(error)
"""


def test_a_disk_that_refuses_ends_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL, str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    [line] = made.stdout.splitlines()
    assert "cannot be written" in line
    study, _ = run(tmp_path, replay(), n_trials=3)
    assert [trial.number for trial in study.trials] == [0, 1, 2]


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupted_opening_keeps_the_baseline_trial_0_and_each_precision_next(tmp_path: Path, at: int) -> None:
    among = space(precision=("fp32", "bf16", "tf32"))
    interrupted(tmp_path, at, among=among)
    study, _ = run(tmp_path, replay(), among)
    assert study.trials[0].configuration == among.baseline
    assert [trial.configuration.values["precision"] for trial in study.trials[:3]] == ["fp32", "bf16", "tf32"]
    assert len({trial.configuration.micro_batch_size for trial in study.trials[:3]}) == 1


def test_a_study_is_unmeasured_until_a_trial_is(tmp_path: Path) -> None:
    assert not is_unmeasured(tmp_path), "a folder without a study is nobody's to clear"
    write_json(tmp_path / REQUEST, {"identity": {}})
    (tmp_path / "probes" / "0000").mkdir(parents=True)
    (tmp_path / "probes" / "0000" / "order.json").write_text("{}")
    assert is_unmeasured(tmp_path)
    write_json(tmp_path / "probes" / "0000" / ANSWER, {})
    assert not is_unmeasured(tmp_path)


# A limited time -------------------------------------------------------------------------------------------------


def timed(
    folder: Path, seconds: float, world: Callable[[Configuration, ProbeOptions], Measurement], **plan: Any
) -> tuple[Study, str, TimedProbe]:
    """Search for so many seconds of a world whose measurements say what they take."""
    time = SimulatedTime(seconds)
    probe = TimedProbe(time, lambda *asked: replace(world(*asked), started_s=time.passed[0]))
    with locked(folder):
        known = {"n_trials": 20, "sampler": "random", "confirmation_rounds": 2}
        study = opened(folder, time=time, **known | plan)
        return study, search(study, probe).text, probe


def each_taking(seconds: float, slow: Callable[[Configuration], bool] = lambda _: False) -> Any:
    """Probes and rounds of so many seconds, and of a thousand those of what is slow."""
    return lambda configuration, _: taking(machine(configuration), 1000.0 if slow(configuration) else seconds)


@pytest.mark.parametrize(("seconds", "sampler"), [(60.0, "random"), (200.0, "physics")])
def test_probes_end_early_enough_for_the_answer_to_be_proven(tmp_path: Path, seconds: float, sampler: str) -> None:
    study, _, probe = timed(tmp_path, seconds, each_taking(4.0), sampler=sampler, n_trials=100, margin=-1.0)
    best = study.standing.answer
    assert best is not None
    assert best.number
    assert study.standing.is_shown(best)
    assert missing_proof(study) == ""
    assert probe.time.passed[0] <= seconds
    assert not probe.killed


def test_a_rival_that_outlasts_the_time_is_ended_and_its_end_is_not_kept(tmp_path: Path) -> None:
    study, stop_reason, probe = timed(tmp_path, 60.0, each_taking(4.0, lambda one: one.micro_batch_size == 8))
    assert len(probe.killed) == 1
    lost = probe.killed[0][0]
    assert probe.time.passed[0] <= 60 * (1 + GRACE)
    assert stop_reason == "the time limit of 1 min 0 s is reached"
    assert lost not in [trial.number for trial in study.trials]
    assert not (study.probe_folder(Slot(lost)) / ANSWER).exists()
    best = study.standing.answer
    assert best is not None
    assert missing_proof(study) == "the proof of the speed-up"
    again, _, probe = timed(tmp_path, 10_000.0, each_taking(4.0))
    assert probe.asked[0] == (lost, 0), "the next run begins with it"
    assert study.trials[-1] in [replace(trial, confirmations=study.trials[-1].confirmations) for trial in again.trials]


def test_a_baseline_that_is_not_measured_in_time_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(TimeIsOver, match=r"your own settings were measured: not done after .*--timeout"):
        timed(tmp_path, 30.0, each_taking(100.0))
    with pytest.raises(TimeIsOver):
        timed(tmp_path, 0.0, each_taking(1.0))
    study, _, _ = timed(tmp_path, 300.0, each_taking(4.0))
    assert study.trials[0].number == 0


def test_if_there_is_no_time_for_the_proof_the_probes_are_the_answer_and_the_next_run_proves_it(tmp_path: Path) -> None:
    def world(configuration: Configuration, options: ProbeOptions) -> Measurement:
        return taking(alike(configuration, options), 20.0)

    study, _, probe = timed(tmp_path, 70.0, world)
    assert probe.asked == [(0, 0), (1, 0)]
    assert study.standing.answer == study.trials[1]
    assert missing_proof(study) == "the proof of the speed-up"
    study, _, probe = timed(tmp_path, 200.0, world, n_trials=2)
    assert not {(0, 0), (1, 0)} & {*probe.asked}
    assert study.standing.is_shown(study.trials[1])
    assert missing_proof(study) == ""


def test_a_round_that_the_time_ends_is_kept_by_nobody_and_measured_by_the_next_run(tmp_path: Path) -> None:
    def world(configuration: Configuration, options: ProbeOptions) -> Measurement:
        outlasts = options.slot.round and configuration == space().baseline
        return taking(alike(configuration, options), 1000.0 if outlasts else 4.0)

    study, stop_reason, probe = timed(tmp_path, 40.0, world, n_trials=2)
    assert probe.killed == [(0, 1)]
    assert stop_reason == "the time limit of 40 s is reached"
    assert study.trials[0].rounds == ()
    assert missing_proof(study) == "the proof of the speed-up"
    study, _, again = timed(tmp_path, 500.0, lambda *asked: taking(alike(*asked), 4.0), n_trials=2)
    assert (0, 1) in again.asked
    assert not {(0, 0), (1, 0)} & {*again.asked}
    assert missing_proof(study) == ""
