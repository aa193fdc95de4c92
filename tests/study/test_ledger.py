"""The ledger: what is in memory is what lies in the folder, after every step."""

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core import Outcome
from autotune.core.slot import Slot, SlotKind
from autotune.judge.dominance import TOO_FEW_DEVICES
from autotune.probe.order import ORDER
from autotune.study.job import Run
from autotune.study.ledger import Ledger
from autotune.study.plan import Plan
from tests.makers import ALLOWED, completed, ended, out_of_memory, space

PLAN = Plan(n_trials=9, objective="samples_per_second", allowed_bytes=ALLOWED)
TRIED = [*space(precision=("fp32", "bf16"))]


def state(ledger: Ledger) -> tuple[object, ...]:
    return ledger.trials, ledger.unfinished, ledger.references, ledger.calibrations, ledger.risks


def measured(folder: Path, count: int) -> Ledger:
    """A ledger with this number of trials."""
    ledger = Ledger.read(folder, PLAN)
    for number in range(count):
        ledger.record(Slot(number), TRIED[number], completed(TRIED[number]))
    return ledger


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from([None, 0.5])),
        st.tuples(st.just("record"), st.booleans()),
        st.tuples(st.just("round"), st.booleans()),
        st.tuples(st.just("reference"), st.booleans()),
    ),
    max_size=12,
)


def take(ledger: Ledger, step: str, how: object) -> None:
    """A step of a search, if it can be taken now."""
    numbers = [trial.number for trial in ledger.trials]
    last = max([0, *(number for trial in ledger.trials for number in trial.rounds)])
    if step == "begin" and (number := ledger.next_number) < len(TRIED):
        ledger.begin(Run(Slot(number), TRIED[number], risk=how))  # type: ignore[arg-type]
    elif step == "record" and ledger.unfinished:
        number, tried = next(iter(ledger.unfinished.items()))
        ledger.record(Slot(number), tried, completed(tried) if how or not number else out_of_memory(tried))
    elif step == "round" and numbers:
        number, tried = numbers[-1], TRIED[numbers[-1]]
        taken = ledger.trials[-1].rounds
        ledger.begin(Run(Slot(number, len(taken) + 1), tried))
        ledger.record(Slot(number, len(taken) + 1), tried, completed(tried))
    elif step == "reference" and last:
        ledger.record(Slot(0, last, SlotKind.REFERENCE), TRIED[0], completed(TRIED[0], losses=(1.0, 0.5)))


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_search_that_is_killed_after_any_step_resumes_with_what_it_had(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.read(Path(folder), PLAN)
        for step in steps:
            take(ledger, *step)
            assert state(Ledger.read(Path(folder), PLAN)) == state(ledger)


def test_without_the_baseline_nothing_is_compared_and_it_is_measured_first(tmp_path: Path) -> None:
    measured(tmp_path, 3)
    (tmp_path / "probes" / "0000" / "measurement.json").write_text("{")
    ledger = Ledger.read(tmp_path, PLAN)
    assert (ledger.trials, ledger.unfinished, ledger.damaged_trials) == ([], {0: TRIED[0]}, [0])
    ledger.record(Slot(0), TRIED[0], completed(TRIED[0]))
    assert [trial.number for trial in ledger.trials] == [0, 1, 2]


def test_what_was_begun_is_known_by_its_proposal_if_its_order_is_cut_off(tmp_path: Path) -> None:
    ledger = measured(tmp_path, 1)
    ledger.begin(Run(Slot(1), TRIED[1], risk=0.45))
    (tmp_path / "probes" / "0001" / ORDER).write_text('{"configuration"')
    again = Ledger.read(tmp_path, PLAN)
    assert (again.unfinished, again.risks, again.next_number) == ({1: TRIED[1]}, {1: 0.45}, 2)


def test_a_trial_of_which_nothing_can_be_read_keeps_its_number(tmp_path: Path) -> None:
    measured(tmp_path, 2)
    for path in (tmp_path / "probes" / "0001").glob("*.json"):
        path.write_text("{")
    again = Ledger.read(tmp_path, PLAN)
    assert ([trial.number for trial in again.trials], again.unfinished, again.next_number) == ([0], {}, 2)


def test_what_there_was_no_time_for_is_left_to_a_later_search(tmp_path: Path) -> None:
    ledger = measured(tmp_path, 1)
    ledger.begin(Run(Slot(1), TRIED[1]))
    ledger.give_up(Slot(1), "the time limit of 60 s is reached")
    assert (ledger.unfinished, [*ledger.out_of_time]) == ({}, [Slot(1)])
    again = Ledger.read(tmp_path, PLAN)
    assert (again.unfinished, again.out_of_time) == ({1: TRIED[1]}, {})


def test_what_timed_out_is_measured_again_only_with_a_longer_limit(tmp_path: Path) -> None:
    late = ended(Outcome.TIMED_OUT, probe_seconds=60.1)
    ledger = measured(tmp_path, 2)
    ledger.record(Slot(1, 1), TRIED[1], late)
    ledger.record(Slot(2), TRIED[2], late)
    for seconds in (None, 60.0):
        again = Ledger.read(tmp_path, replace(PLAN, probe_timeout_s=seconds))
        assert (again.trials, again.unfinished) == (ledger.trials, {})
    longer = Ledger.read(tmp_path, replace(PLAN, probe_timeout_s=120.0))
    assert longer.unfinished == {2: TRIED[2]}
    assert [trial.rounds for trial in longer.trials] == [(), ()]
    assert longer.next_number == 3


def test_a_trial_that_is_measured_again_has_the_rounds_that_a_resumed_search_takes(tmp_path: Path) -> None:
    plan = replace(PLAN, training_steps=500)
    ledger = measured(tmp_path, 2)
    ledger.record(Slot(1, 1), TRIED[1], replace(completed(TRIED[1]), training_steps=100))
    ledger.record(Slot(1, 2), TRIED[1], ended(Outcome.UNSUPPORTED, where=TOO_FEW_DEVICES))
    (tmp_path / "probes" / "0001" / "measurement.json").write_text("{")
    again = Ledger.read(tmp_path, plan)
    again.record(Slot(1), TRIED[1], replace(completed(TRIED[1]), training_steps=500))
    assert again.trials == Ledger.read(tmp_path, plan).trials
    assert [round_.training_steps for round_ in again.trials[1].confirmations] == [500]


def test_what_does_not_learn_is_known_to_the_sampler_unless_it_may_win(tmp_path: Path) -> None:
    other = next(tried for tried in TRIED if tried.values["precision"] != TRIED[0].values["precision"])
    ledger = measured(tmp_path, 1)
    assert ledger.flagged == []
    ledger.record(Slot(1), other, completed(other))
    for number, tried, falls in ((0, TRIED[0], 0.1), (1, other, 0.0)):
        losses = tuple(3.0 - falls * step for step in range(8))
        ledger.record(Slot(number, 1), tried, completed(tried, losses=losses))
    assert ledger.flagged == [other]
    assert Ledger.read(tmp_path, PLAN).flagged == [other]
    assert Ledger.read(tmp_path, replace(PLAN, allow_loss_difference=True)).flagged == []


def test_a_device_s_repetition_is_found_again_by_the_name_of_the_device(tmp_path: Path) -> None:
    ledger = measured(tmp_path, 1)
    ledger.record(Slot(1, kind=SlotKind.DEVICE), TRIED[0], completed(TRIED[0], device="b"))
    again = Ledger.read(tmp_path, PLAN)
    assert {name: trial.configuration for name, trial in again.calibrations.items()} == {"b": TRIED[0]}
    assert [trial.number for trial in again.trials] == [0], "it is not a trial"
