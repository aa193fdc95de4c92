"""The losses' reference: what it is trained in, when, and what it costs; rounds of long steps beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.loss_curves import LEAST_STEPS
from autotune.core.note import Note, NoteKind
from autotune.core.slot import Slot, SlotKind
from autotune.executors.pool import ThreadPool
from autotune.probe import ProbeOptions
from autotune.probe.order import LOSSES
from autotune.report.evidence import measurement_lines
from autotune.space.search_space import SearchSpace
from autotune.space.utilization import Arithmetic
from autotune.study.finish import finish
from autotune.study.job import Known
from autotune.study.loop import open_study, search
from autotune.study.pacing import (
    LONG_STEP_S,
    can_be_composed,
    round_seconds,
    seconds_to_go,
)
from autotune.study.plan import Plan
from autotune.study.reference import (
    is_wanted,
    loss_steps,
    next_reference,
    reference_seconds,
    references,
    rounds_unreferred,
    why_none,
)
from autotune.study.schedule import _reference_step
from autotune.study.study import Study
from tests.makers import ALLOWED, GIB, MIB, completed, configuration, ended, space, standing_of

SPEED = "samples_per_second"
H100 = {"fp32": 45e12, "tf32": 180e12, "bf16": 400e12}
"""Operations / second that a card of this kind reaches."""

FALLING = tuple(9 - 0.05 * step for step in range(12))
PLAN = Plan(n_trials=4, objective=SPEED, allowed_bytes=GIB)
ON_GPU = replace(PLAN, is_cpu=False, precisions=("fp32", "tf32", "fp16", "bf16"))


def lasting(
    of: Configuration, step_s: float, start_s: float = 4.0, run: int | None = None, **facts: Any
) -> Measurement:
    """A probe whose whole step takes so long, measured with so many micro-steps."""
    whole = completed(of, of.global_batch_size / step_s, spread=0.002)
    accumulation, run = of.gradient_accumulation_steps, run or of.gradient_accumulation_steps
    micro = step_s / accumulation
    steps = tuple(
        replace(
            step,
            seconds=step.seconds * run / accumulation,
            first_s=micro,
            middle_s=step.seconds / accumulation,
            last_s=micro,
            samples=of.micro_batch_size * run,
        )
        for step in whole.steps
    )
    seconds = start_s + (len(steps) + whole.untimed_steps) * step_s * run / accumulation
    known = {"settings": {"precision": of.values["precision"]}, "probe_seconds": seconds}
    return replace(whole, steps=steps, accumulation_steps_run=run, **known | facts)


def in_(precision: str, micro: int = 8, global_batch_size: int = 48) -> Configuration:
    return configuration(micro, global_batch_size, precision=precision)


def trial(number: int, of: Configuration, step_s: float = 1.0, rounds: int = 0, **facts: Any) -> Trial:
    few = min(3, of.gradient_accumulation_steps)
    measured = (replace(lasting(of, step_s, losses=FALLING), round=each + 1) for each in range(rounds))
    return Trial(number, of, lasting(of, step_s, run=few, **facts), tuple(measured))


# What it is -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained", "wanted"),
    [("fp32", []), ("tf32", ["fp32"]), ("fp16", ["fp32", "tf32"]), ("bf16_weights", ["fp32", "tf32", "bf16"])],
)
def test_the_baseline_is_compared_with_itself_in_what_is_more_exact(trained: str, wanted: list[str]) -> None:
    found = references(standing_of([trial(0, in_(trained))]), ON_GPU.precisions)
    assert [*found] == wanted
    without = references(standing_of([trial(0, in_(trained))]), ("fp32", "bf16"))
    assert [*without] == [precision for precision in wanted if precision != "tf32"], "a device without TF32"
    assert all(of == in_(precision) for precision, of in found.items())


def test_where_the_baseline_does_not_run_the_leader_stands_in_with_the_baselines_optimizer() -> None:
    baseline = Trial(0, configuration(48, optimizer="adafactor"), ended(Outcome.OUT_OF_MEMORY))
    leader = trial(1, in_("bf16_weights"))
    found = references(standing_of([baseline, leader]), ON_GPU.precisions)
    assert [*found] == ["fp32", "tf32", "bf16"]
    assert {(of.micro_batch_size, of.values["optimizer"]) for of in found.values()} == {(8, "adafactor")}
    assert references(standing_of([baseline])) == {}


def chosen(trials: list[Trial], *known: Measurement, products: Mapping[str, float] = H100) -> str | None:
    by_round = dict(enumerate(known, 1))
    found = next_reference(ON_GPU, standing_of(trials), by_round, products)
    return None if found is None else str(found.values["precision"])


def test_tf32_is_the_reference_if_fp32_takes_longer_than_a_rivals_round() -> None:
    long = trial(0, in_("bf16", 2, 64), 8.0, context_bytes=500 * MIB)
    assert chosen([long]) == "tf32"
    assert chosen([trial(0, in_("bf16_frozen", 2, 64), 8.0)]) == "tf32"
    assert chosen([long], products={"fp32": 45e12, "bf16": 400e12}) == "fp32", "a card without TF32"
    assert chosen([trial(0, in_("bf16"), 0.05)]) == "fp32"
    assert next_reference(PLAN, standing_of([long]), {}, H100) == in_("fp32", 2, 64), (
        "a device on which TF32 does not work"
    )


def ran_as(precision: str, outcome: Outcome = Outcome.COMPLETED) -> Measurement:
    measured = lasting(in_(precision), 1.0) if outcome is Outcome.COMPLETED else ended(outcome)
    return replace(measured, asked=in_(precision).values)


def test_after_a_reference_that_does_not_fit_or_takes_too_long_the_next_is_tried() -> None:
    trials = [trial(0, in_("bf16_weights"), 0.1)]
    assert chosen(trials, ran_as("fp32", Outcome.OUT_OF_MEMORY)) == "bf16", "TF32 needs as much memory"
    assert chosen(trials, ran_as("fp32", Outcome.TIMED_OUT)) == "tf32"
    assert chosen(trials, ran_as("tf32", Outcome.TIMED_OUT)) == "bf16"
    assert chosen(trials, ran_as("bf16", Outcome.OUT_OF_MEMORY)) is None
    assert chosen(trials, ran_as("fp32", Outcome.CRASHED)) is None
    above = replace(ran_as("fp32"), allocator_retries=1)
    assert chosen(trials, above) == "bf16", "it completed, but without the memory that it needs"
    assert why_none(standing_of(trials), {1: above}) == Note(NoteKind.LOSSES_NEED_MEMORY, detail="fp32")
    assert chosen(trials, ran_as("tf32"), ran_as("tf32", Outcome.TIMED_OUT)) == "tf32", "as in other rounds"


# When -----------------------------------------------------------------------------------------------------------------


def test_on_a_gpu_it_trains_once_and_again_only_for_a_trial_that_shares_no_round_with_it() -> None:
    trials = [trial(0, in_("bf16"), rounds=3), trial(1, in_("bf16", 16), rounds=3)]
    known = {1: ran_as("fp32")}
    assert rounds_unreferred(trials, {}) == {1}
    assert [number for number in (1, 2, 3) if is_wanted(ON_GPU, standing_of(trials), known, number)] == []
    late = replace(trials[1], number=2, confirmations=(replace(trials[1].confirmations[0], round=4),))
    assert rounds_unreferred([*trials, late], known) == {4}
    assert is_wanted(ON_GPU, standing_of([*trials, late]), known, 4)


def test_on_a_cpu_it_trains_in_every_round_unless_it_takes_longer_than_a_rivals() -> None:
    trials = [trial(0, in_("bf16"), 0.1, rounds=2), trial(1, in_("bf16", 16), 0.1, rounds=2)]
    assert is_wanted(PLAN, standing_of(trials), {1: replace(ran_as("fp32"), probe_seconds=1.0)}, 2)
    assert not is_wanted(PLAN, standing_of(trials), {1: replace(ran_as("fp32"), probe_seconds=60.0)}, 2)
    assert not is_wanted(PLAN, standing_of(trials), {1: replace(ran_as("fp32"), probe_seconds=1.0)}, 3), (
        "nothing ran in it"
    )


@pytest.mark.parametrize(("rivals", "steps"), [(30, 10), (7, 7), (2, LEAST_STEPS)])
def test_it_trains_as_many_steps_as_its_rivals_but_few(rivals: int, steps: int) -> None:
    ran = trial(1, in_("bf16"), rounds=1)
    ran = replace(ran, confirmations=(replace(ran.confirmations[0], losses=(9.0,) * rivals),))
    assert loss_steps([ran], 1) == steps


def test_a_reference_that_fit_and_does_not_beside_the_new_leader_is_asked_for_once(tmp_path: Path) -> None:
    """The baseline does not run, so that the reference is made from the leader, which was another one in round 1."""
    study = open_study(tmp_path, space(), PLAN)
    ledger = study.ledger
    ledger.standing = standing_of(
        [
            Trial(0, in_("bf16"), ended(Outcome.OUT_OF_MEMORY)),
            trial(1, in_("bf16", 16), 0.1, rounds=2),
            Trial(2, in_("fp32", 16), ended(Outcome.OUT_OF_MEMORY)),
        ]
    )
    ledger.references = {1: replace(ran_as("fp32"), probe_seconds=1.0)}
    step = _reference_step(study)
    assert isinstance(step, Known)
    assert step.measurement.outcome is Outcome.OUT_OF_MEMORY
    ledger.references[2] = replace(step.measurement, asked=step.configuration.values)
    assert _reference_step(study) is None


# What it costs --------------------------------------------------------------------------------------------------------


def test_what_the_reference_takes_is_in_every_estimate_of_time() -> None:
    trials = [trial(0, in_("bf16"), 0.5), trial(1, in_("bf16", 16), 0.4)]
    expected_s = trials[0].measurement.starting_s + LOSSES.seconds  # ten steps of 0.5 s x 400 / 45 take longer
    reference_s = reference_seconds(ON_GPU, standing_of(trials), {}, {"fp32": 45e12, "bf16": 400e12}, rounds=3)
    assert reference_s == pytest.approx(expected_s)
    assert reference_seconds(ON_GPU, standing_of(trials), {1: ran_as("fp32")}, H100, rounds=2) == 0
    assert reference_seconds(ON_GPU, standing_of([trial(0, in_("fp32"))]), {}, H100) == 0
    without = seconds_to_go(ON_GPU, standing_of(trials), True)
    assert without is not None
    assert seconds_to_go(ON_GPU, standing_of(trials), True, reference_s=reference_s) == pytest.approx(
        without + reference_s
    )
    on_cpu = reference_seconds(PLAN, standing_of(trials), {}, {}, rounds=3)
    assert on_cpu == pytest.approx(3 * reference_seconds(PLAN, standing_of(trials), {}, {}))


# Rounds of long steps -------------------------------------------------------------------------------------------------


def test_only_long_steps_of_batches_that_are_alike_are_composed() -> None:
    assert can_be_composed(trial(0, in_("bf16", 1, 64), 1.1 * LONG_STEP_S))
    assert not can_be_composed(trial(0, in_("bf16", 1, 64), 0.9 * LONG_STEP_S))
    assert not can_be_composed(trial(0, in_("bf16", 32, 64), 10 * LONG_STEP_S)), "it has no more micro-steps"
    assert not can_be_composed(trial(0, in_("bf16", 1, 64), 10 * LONG_STEP_S, worst_batch="long samples"))
    whole = trial(0, in_("bf16", 1, 64), 10 * LONG_STEP_S)
    probed_whole = replace(whole, measurement=lasting(whole.configuration, 10 * LONG_STEP_S))
    assert not can_be_composed(probed_whole), "as its micro-steps share work, or its workers did not keep up"


def test_a_long_round_is_foreseen_by_its_whole_steps_once_and_then_by_few_micro_steps() -> None:
    llama = trial(1, in_("bf16_frozen", 2, 64), 10.0)
    start_s = llama.measurement.starting_s
    first = round_seconds(llama, is_cpu=False)
    assert first == pytest.approx(start_s + (3 + 3) * 10.0)
    few = 4 * 10.0 * 3 / 32 + 4.0
    ran = replace(llama, confirmations=(replace(lasting(llama.configuration, 10.0), round=1, probe_seconds=82.0),))
    assert round_seconds(ran, is_cpu=False) == pytest.approx(start_s + few)
    failed = replace(
        ran, confirmations=(*ran.confirmations, replace(ran.confirmations[0], round=2, whole_because="why"))
    )
    assert round_seconds(failed, is_cpu=False) == 82.0


@dataclass
class Card:
    """A probe of a card with long steps. fits: precisions that do; error: by how much composed steps are off; losses of what
    is `wrong` do not fall."""

    fits: tuple[str, ...] = ("fp32", "tf32", "bf16", "bf16_weights")
    error: float = 0.0
    wrong: str = ""
    asked: list[tuple[int, int, int]] = field(default_factory=list)  # number, round, micro-steps
    losses: list[tuple[str, int, int]] = field(default_factory=list)  # precision, round, steps
    now: float = 1e9  # on its clock

    def __call__(self, of: Configuration, options: ProbeOptions) -> Measurement:
        precision = str(of.values["precision"])
        accumulation = of.gradient_accumulation_steps
        if precision not in self.fits:
            self.losses += [(precision, options.slot.round, 0)] * (options.slot.kind is SlotKind.REFERENCE)
            return ended(Outcome.OUT_OF_MEMORY, asked=of.values)
        step_s = H100["bf16"] / H100.get(precision, H100["bf16"]) * 8.0 / of.micro_batch_size**0.3
        few = not options.slot.round or (options.whole_speed is not None and not self.error)
        run = min(3, accumulation) if few else accumulation
        losses = (9.0,) * 7 if precision == self.wrong else FALLING[:7]
        if options.slot.kind is SlotKind.REFERENCE:
            self.losses.append((precision, options.slot.round, options.losses))
            losses = losses[: options.losses]
        else:
            self.asked.append((options.slot.number, options.slot.round, run))
        facts = {"losses": losses} if options.slot.round and run == accumulation else {}
        because = (
            "a step composed of 3 micro-steps took 1.08 times as long" if options.whole_speed and self.error else ""
        )
        measured = lasting(of, step_s, run=run, asked=of.values, whole_because=because, started_s=self.now, **facts)
        self.now += measured.probe_seconds
        return measured


def searched(
    folder: Path,
    card: Card | ThreadPool,
    plan: Plan = ON_GPU,
    among: SearchSpace | None = None,
    products: Mapping[str, float] = H100,
) -> Study:
    folder.mkdir(exist_ok=True)
    known = replace(plan, sampler="brute-force", allowed_bytes=ALLOWED)
    among = among or space(micro_batch_size=(1, 2, 4), global_batch_size=64, precision=("bf16",))
    study = open_study(folder, among, known)
    study.start_from(replace(study.warm_start, arithmetic=Arithmetic(products=products)))
    search(study, card)
    return study


def checked(study: Study) -> list[int]:
    assert study.ledger.numerics is not None
    numerics = study.ledger.numerics
    return [trial.number for trial in study.trials if trial.confirmed and numerics.is_checked(trial.number)]


def test_long_rounds_run_all_micro_steps_once_and_every_finalist_s_losses_are_compared(tmp_path: Path) -> None:
    card = Card()
    study = searched(tmp_path, card)
    confirmed = [trial for trial in study.trials if trial.confirmed]
    whole = {trial.number: trial.configuration.gradient_accumulation_steps for trial in confirmed}
    assert len(confirmed) >= 2
    assert {number: run for number, round_number, run in card.asked if round_number == 1} == whole
    assert {run for _, round_number, run in card.asked if round_number > 2} <= {3}
    assert card.losses == [("tf32", 1, 7)]
    assert checked(study) == [trial.number for trial in confirmed]
    assert study.ledger.numerics is not None
    assert study.ledger.numerics.reference == "TF32"
    again = open_study(tmp_path, study.space, study.plan)
    assert again.ledger.references == study.ledger.references


def test_rounds_go_back_to_whole_steps_if_composed_ones_do_not_agree_with_them(tmp_path: Path) -> None:
    card = Card(error=0.1)
    study = searched(tmp_path, card, replace(ON_GPU, confirmation_rounds=4))
    best = study.standing.answer
    assert best is not None
    assert {run for number, round_number, run in card.asked if number == 0 and round_number} == {32}
    assert "took 1.08 times as long" in " ".join(measurement_lines(best))
    assert not any(measured.is_composed for trial in study.trials for measured in trial.confirmations)


@pytest.mark.parametrize(
    ("fits", "reference", "tried"),
    [
        (("bf16", "bf16_weights"), "bf16 autocast", [("fp32", 1, 0), ("bf16", 1, 7)]),
        (("bf16_weights",), "the baseline", [("fp32", 1, 0), ("bf16", 1, 0)]),
    ],
)
def test_what_fp32_does_not_fit_is_compared_with_the_most_exact_that_does(
    tmp_path: Path, fits: tuple[str, ...], reference: str, tried: list[tuple[str, int, int]]
) -> None:
    card = Card(fits)
    among = space(micro_batch_size=(1, 2, 4), global_batch_size=64, precision=("bf16_weights",))
    study = searched(tmp_path, card, among=among, products={})
    assert card.losses == tried
    assert study.ledger.numerics is not None
    assert study.ledger.numerics.reference == reference
    assert checked(study) == [trial.number for trial in study.trials if trial.confirmed]


def test_losses_that_there_was_no_time_for_are_told_and_compared_by_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    study = searched(folder, Card())
    (study.probe_folder(Slot(0, 1, SlotKind.REFERENCE)) / "measurement.json").unlink()
    missing = open_study(folder, study.space, study.plan)
    finish(missing, lambda *order: ({}, None), lambda progress: None)
    assert "losses" in missing.ledger.left_out
    card = Card()
    resumed = searched(folder, card)
    assert card.losses == [("tf32", 1, 7)]
    assert [number for number, round_number, _ in card.asked if round_number == 1] == []
    assert checked(resumed) == [trial.number for trial in resumed.trials if trial.confirmed]
