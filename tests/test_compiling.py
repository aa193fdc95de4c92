"""What compiling costs, from the measurement to the answer: spread over the announced run, probed late, told to people."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Trial
from autotune.core.measurement import pooled
from autotune.core.slot import Slot
from autotune.judge.objective import pays_from, speed
from autotune.judge.observation import observed
from autotune.report.checks import compiling_text
from autotune.sampler.warm_start import WarmStart
from autotune.study.job import Run
from autotune.study.loop import open_study, search
from autotune.study.measure import measure
from autotune.study.plan import Plan
from autotune.study.store import locked, probe_folder, read_trial
from autotune.study.study import Study
from tests.makers import ALLOWED, completed, machine, space, standing_of, trial
from tests.replay_probe import ReplayProbe

SPEED = "samples_per_second"
SPACE = space(checkpointing=("none", "full"), precision=("fp32", "bf16"), compile=("none", "default"))
COMPILE_S = 40.0


def world(of: Configuration) -> Measurement:
    """The small world, in which compiled steps run half as fast again."""
    plain = machine(of)
    if of.values["compile"] == "none" or not plain.steps:
        return plain
    steps = tuple(
        replace(step, seconds=step.seconds / 1.5, last_s=step.last_s / 1.5, optimizer_s=step.optimizer_s / 1.5)
        for step in plain.steps
    )
    return replace(plain, steps=steps, compile_s=COMPILE_S, probe_seconds=plain.probe_seconds + COMPILE_S)


def plan(**facts: Any) -> Plan:
    known = {"n_trials": 16, "objective": SPEED, "confirmation_rounds": 0}
    return Plan(allowed_bytes=ALLOWED, **known | facts)


def run(folder: Path, **facts: Any) -> Study:
    def estimate(one: Configuration) -> float:
        return float(machine(one).peak_bytes or machine(one).held_bytes or 0)

    with locked(folder):
        study = open_study(folder, SPACE, plan(**facts), WarmStart(ALLOWED, estimate))
        search(study, ReplayProbe(world))
    return study


def compiled(one: Trial) -> bool:
    return one.configuration.values["compile"] != "none"


# The objective --------------------------------------------------------------------------------------------------


def test_seconds_of_compiling_are_spread_over_the_announced_steps() -> None:
    one = completed(samples_per_second=10.0)  # 48 samples a step: 4.8 s
    slow_start = replace(one, compile_s=48.0)
    assert speed(slow_start, SPEED) == pytest.approx(10.0), "nothing was announced"
    announced = speed(replace(slow_start, training_steps=100), SPEED)
    assert announced == pytest.approx(10.0 * 480 / (480 + 48))
    assert announced is not None
    assert announced.low < announced < announced.high
    assert speed(replace(one, training_steps=100), SPEED) == pytest.approx(10.0)


def test_it_pays_from_the_step_on_at_which_it_has_saved_what_it_cost() -> None:
    plain, fast = trial(0, 10.0), trial(1, 16.0)
    fast = replace(fast, measurement=replace(fast.measurement, compile_s=36.0))
    saved = 48 / 10.0 - 48 / 16.0
    assert pays_from(fast, [plain, fast]) == pytest.approx(36.0 / saved, abs=1)
    assert pays_from(plain, [plain, fast]) == 0
    said = compiling_text(fast, [plain, fast])
    assert said == f"takes 36 s at the start; it pays from {pays_from(fast, [plain, fast])} steps on"
    assert "of your 1000 steps" in compiling_text(fast.with_training_steps(1000), [plain, fast])


@pytest.mark.parametrize(("steps", "wins"), [(20, False), (1_000_000, True)])
def test_a_short_run_is_not_compiled_and_a_long_one_is(steps: int, wins: bool) -> None:
    first = SPACE.baseline
    other = SPACE.configuration({**first.values, "compile": "default"})
    trials = [Trial(n, item, world(item)).with_training_steps(steps) for n, item in enumerate((first, other))]
    best = standing_of(trials).answer
    assert best is not None
    assert compiled(best) == wins


# The search -----------------------------------------------------------------------------------------------------


def test_compiling_is_tried_after_what_is_cheap_and_wins_a_long_run(tmp_path: Path) -> None:
    study = run(tmp_path)
    before = [one for one in study.trials if not any(map(compiled, study.trials[: one.number + 1]))]
    assert len(before) < len(study.trials)
    plain = max(
        (item for item in SPACE if item.values["compile"] == "none"), key=lambda one: world(one).samples_per_second or 0
    )
    assert plain in [item.configuration for item in before], "what is cheap to try is known by then"
    best = study.standing.answer
    assert best is not None
    assert compiled(best)


def test_for_a_run_too_short_to_pay_for_it_nothing_is_compiled(tmp_path: Path) -> None:
    study = run(tmp_path, training_steps=40)
    assert not any(map(compiled, study.trials))


def test_what_a_probe_spends_on_compiling_is_none_of_its_usual_start() -> None:
    of = SPACE.configuration({**SPACE.baseline.values, "compile": "default"})
    told = observed(of, replace(world(of), probe_seconds=world(of).probe_seconds + 5.0))
    assert told.compile_s == COMPILE_S
    assert told.starting_s < 6.0


# One trial ------------------------------------------------------------------------------------------------------


def test_the_first_round_counts_the_compiling_and_later_ones_count_it_too(tmp_path: Path) -> None:
    of = SPACE.configuration({**SPACE.baseline.values, "compile": "default"})
    warm = replace(world(of), compile_s=3.0)
    of_probe = measure(tmp_path, plan(training_steps=500), standing_of([]), ReplayProbe({of: warm}), Run(Slot(), of))
    tried = Trial(0, of, of_probe)
    first = measure(tmp_path, plan(training_steps=500), standing_of([tried]), ReplayProbe(world), Run(Slot(0, 1), of))
    tried = replace(tried, confirmations=(replace(first, round=1),))
    again = measure(
        tmp_path, plan(training_steps=500), standing_of([tried]), ReplayProbe({of: warm}), Run(Slot(0, 2), of)
    )
    assert (of_probe.compile_s, first.compile_s, again.compile_s) == (3.0, COMPILE_S, COMPILE_S)
    assert pooled([first, again]).compile_s == COMPILE_S
    kept = read_trial(probe_folder(tmp_path, Slot()), 0)
    assert kept is not None
    assert kept.measurement.training_steps == 500
    assert kept.confirmations[0].compile_s == COMPILE_S


def test_its_deadline_leaves_time_for_it(tmp_path: Path) -> None:
    probe = ReplayProbe(world)
    before = [Trial(0, SPACE.baseline, world(SPACE.baseline))]
    for value in ("none", "default"):
        of = SPACE.configuration({**SPACE.baseline.values, "compile": value})
        measure(tmp_path, plan(), standing_of(before), probe, Run(Slot(1), of))
    (_, plain), (_, patient) = probe.asked
    assert plain.deadline_s == 60.0
    assert patient.deadline_s >= 600.0
