"""The sampler `physics`: alone, beside what runs, and in spaces too large to score whole."""

import math
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from autotune.core import Configuration, Outcome, Trial
from autotune.judge.constants import LOOKS
from autotune.judge.standing import each_measured
from autotune.sampler.candidates import pool
from autotune.sampler.constants import POOL
from autotune.sampler.parameters import configuration_of, distributions, parameters
from autotune.sampler.physics import MEASUREMENT, PhysicsSampler
from autotune.sampler.policy import Why
from autotune.sampler.situation import Situation
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from tests.makers import ALLOWED, MIB, machine, space, standing_of

SPACE = space(checkpointing=("none", "full"), precision=("fp32", "bf16"), workers=(0, 2))


def estimate(candidate: Configuration) -> float:
    """The small world's peaks, 40 MiB too low."""
    return (machine(candidate).peak_bytes or machine(candidate).held_bytes or 0) - 40.0 * MIB


KNOWLEDGE = WarmStart(ALLOWED, estimate)


def searched(sampler: PhysicsSampler, most: int = 40) -> list[Trial]:
    """The trials of a search of the small world, one measurement after the other, until there are so many."""
    trials, now_s = list[Trial](), 0.0
    while len(trials) < most:
        choice = sampler.choose(standing_of(trials))
        if choice.configuration is None:
            break
        measured = replace(machine(choice.configuration), started_s=now_s)
        now_s += measured.probe_seconds
        tried = [trial.configuration for trial in trials]
        if choice.why is Why.NEW:
            assert choice.configuration not in tried
            trials.append(Trial(len(trials), choice.configuration, measured))
        else:
            again = trials[tried.index(choice.configuration)]
            rounds = (*again.confirmations, replace(measured, round=len(again.confirmations) + 1))
            trials[again.number] = replace(again, confirmations=rounds)
    return trials


def tried_by(sampler: PhysicsSampler, count: int) -> list[Configuration]:
    """The configurations that a search of the small world tries first."""
    return [trial.configuration for trial in searched(sampler, count)]


def fastest(among: SearchSpace = SPACE) -> Configuration:
    return max(among, key=lambda candidate: float(machine(candidate).samples_per_second or 0.0))


def test_nothing_is_tried_that_learns_as_what_cannot_win_for_its_losses() -> None:
    own = SPACE.baseline.values
    faster = SPACE.configuration({**own, "precision": "bf16"})
    tried = [
        Trial(0, SPACE.baseline, machine(SPACE.baseline)),
        Trial(1, faster, machine(faster), disqualified_reason="its loss differs"),
    ]
    sampler = PhysicsSampler(SPACE, KNOWLEDGE)
    choice = sampler.choose(standing_of(tried))
    assert choice.configuration is not None
    assert choice.configuration.values["precision"] == "bf16", "the sampler knows of nothing against the fastest"
    choice = sampler.choose(standing_of(tried), Situation(flagged=[faster]))
    assert choice.configuration is not None
    assert choice.why is Why.NEW
    assert choice.configuration.values["precision"] == "fp32"


def test_a_search_begins_with_the_baseline_and_ends_with_the_fastest_measured_beside_it() -> None:
    sampler = PhysicsSampler(SPACE, KNOWLEDGE)
    trials = searched(sampler)
    assert trials[0].configuration == SPACE.baseline
    assert all(trial.measurement.outcome is not Outcome.OUT_OF_MEMORY for trial in trials)
    end = sampler.choose(standing_of(trials))
    winner = next(trial for trial in trials if trial.configuration == end.winner)
    assert machine(winner.configuration).samples_per_second == machine(fastest()).samples_per_second
    assert len(winner.confirmations) >= min(LOOKS)
    assert len(trials[0].confirmations) >= min(LOOKS)
    assert end.claim is not None
    assert end.claim.low <= machine(fastest()).samples_per_second / machine(SPACE.baseline).samples_per_second
    assert 1 < end.claim.low < end.claim < end.claim.high


def test_devices_that_repeat_what_others_did_tell_how_they_differ_and_prove_nothing() -> None:
    """Device 1 is a tenth slower; what it repeated tells that what it measured next was not slow by itself."""
    sampler, base = PhysicsSampler(SPACE, KNOWLEDGE), SPACE.baseline
    better = SPACE.configuration({**base.values, "precision": "bf16"})

    def on(device: str, number: int, candidate: Configuration, factor: float) -> Trial:
        usual = machine(candidate)
        steps = tuple(replace(step, seconds=step.seconds * factor, last_s=step.last_s * factor) for step in usual.steps)
        return Trial(number, candidate, replace(usual, steps=steps, device=device, started_s=float(number)))

    trials = [on("0", 0, base, 1.0), on("1", 1, better, 1.1)]
    repeat = on("1", 0, base, 1.1)
    assert sampler.choose(standing_of(trials), Situation(calibrations=[repeat], device="0")).claim is None
    costs = sampler._model_with([base, better], [], (SPACE,))
    before, after = (costs.costs(each_measured(some)) for some in (trials, [*trials, repeat]))
    ahead = [
        float(known.log_step[costs.place[base]] - known.log_step[costs.place[better]]) for known in (before, after)
    ]
    true = math.log(1.3)
    assert abs(ahead[1] - true) < abs(ahead[0] - true)


def test_without_an_estimate_it_grows_with_care() -> None:
    tried = tried_by(PhysicsSampler(SPACE, WarmStart(ALLOWED)), 10)
    assert fastest() in tried
    assert sum(machine(candidate).outcome is Outcome.OUT_OF_MEMORY for candidate in tried) <= 2


def large() -> SearchSpace:
    sizes = tuple(2**power for power in range(11))
    return space(
        micro_batch_size=sizes,
        global_batch_size=1024,
        checkpointing=("none", "full"),
        precision=("fp32", "tf32", "fp16", "bf16"),
        optimizer=("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "sgd"),
        workers=(0, 1, 2, 4, 8, 16),
        pin_memory=(True, False),
    )


def test_of_a_large_space_the_neighbours_of_the_best_are_considered() -> None:
    among = large()
    assert among.size > POOL
    near = among.configuration({**among.baseline.values, "precision": "bf16", "micro_batch_size": 64})
    chosen = pool([among], [among.baseline], [near], KNOWLEDGE.prior, seed=1)
    assert len(chosen) == len(set(chosen)) == POOL
    assert among.baseline in chosen
    for name, values in among.values.items():
        for value in values:
            assert among.configuration({**near.values, name: value}) in chosen


def test_a_change_that_wins_nothing_is_tried_without_and_one_that_counts_is_not() -> None:
    """In the small world workers change nothing, and the micro-batch size does."""
    sampler, base = PhysicsSampler(SPACE, KNOWLEDGE), SPACE.baseline.values
    larger = SPACE.configuration({**base, "micro_batch_size": 4, "checkpointing": "full"})
    both = SPACE.configuration({**larger.values, "workers": 2})
    seen = [
        SPACE.baseline,
        SPACE.configuration({**base, "workers": 2}),
        SPACE.configuration({**base, "micro_batch_size": 1, "workers": 2}),
        SPACE.configuration({**base, "micro_batch_size": 1}),
        SPACE.configuration({**base, "checkpointing": "full"}),
        both,
    ]
    trials = [Trial(number, item, machine(item)) for number, item in enumerate(seen)]
    sampler.choose(standing_of(trials))
    assert sampler.simpler(standing_of(trials), both) == larger
    assert sampler.simpler(standing_of([*trials, Trial(6, larger, machine(larger))]), both) == larger, "measured or not"
    assert sampler.simpler(standing_of(trials), larger) is None
    assert sampler.simpler(standing_of(trials), SPACE.baseline) is None


# As a sampler of Optuna's ---------------------------------------------------------------------------------------


def objective(trial: optuna.Trial) -> float:
    """Samples / second of the small world; 0 where it does not fit."""
    measured = machine(PhysicsSampler(SPACE, KNOWLEDGE).configuration(trial))
    trial.set_user_attr(MEASUREMENT, measured.to_dict())
    return float(measured.samples_per_second or 0.0) if measured.feasible else 0.0


def test_optuna_s_loop_finds_the_fastest_and_is_stopped_once_nothing_is_worth_measuring() -> None:
    study = optuna.create_study(direction="maximize", sampler=PhysicsSampler(SPACE, KNOWLEDGE))
    study.optimize(objective, n_trials=60)
    assert len(study.trials) < 60
    assert configuration_of(SPACE, study.trials[0].params) == SPACE.baseline
    assert study.best_value == float(machine(fastest()).samples_per_second or 0.0)
    repeated = [each.params for each in study.trials].count(study.best_params)
    assert repeated > 1, "it is measured again, to prove the speed-up"


def test_asked_by_optuna_it_samples_what_the_search_chooses() -> None:
    trials = searched(PhysicsSampler(SPACE, KNOWLEDGE), 8)
    for count in range(len(trials)):
        study = optuna.create_study(direction="maximize", sampler=PhysicsSampler(SPACE, KNOWLEDGE))
        first = [replace(trial, confirmations=()) for trial in trials[:count]]
        for trial in first:
            given = parameters(SPACE, trial.configuration), distributions(SPACE)
            attributes = {MEASUREMENT: trial.measurement.to_dict()}
            study.add_trial(
                optuna.create_trial(value=1.0, params=given[0], distributions=given[1], user_attrs=attributes)
            )
        asked = configuration_of(SPACE, study.ask(distributions(SPACE)).params)
        assert asked == PhysicsSampler(SPACE, KNOWLEDGE).choose(standing_of(first)).configuration


def test_a_failed_trial_is_not_sampled_again_and_one_without_a_measurement_is_an_error() -> None:
    study = optuna.create_study(direction="maximize", sampler=PhysicsSampler(SPACE, KNOWLEDGE))
    study.optimize(objective, n_trials=1)
    failed = study.ask(distributions(SPACE))
    study.tell(failed, state=TrialState.FAIL)
    bare = study.ask(distributions(SPACE))
    assert bare.params != failed.params
    study.tell(bare, 1.0)
    with pytest.raises(ValueError, match="trial 2 has no measurement"):
        study.ask(distributions(SPACE))
