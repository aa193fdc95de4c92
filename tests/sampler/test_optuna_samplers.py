"""Who proposes: every sampler on a small world, and configurations as Optuna's parameters."""

from dataclasses import replace

import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from autotune.core import Configuration, Measurement, Trial
from autotune.core.request import SAMPLERS
from autotune.sampler.optuna_samplers import OptunaSampler, Sampler, make_sampler
from autotune.sampler.parameters import configuration_of, distributions, parameters
from autotune.sampler.policy import End, Why
from autotune.sampler.situation import Situation
from autotune.sampler.warm_start import WarmStart
from tests.makers import ALLOWED, machine, space, standing_of

OPTUNAS = [name for name in SAMPLERS if name != "physics"]
SPACE = space(checkpointing=("none", "full"), precision=("fp32", "bf16"), workers=(0, 2), pin_memory=(True, False))


def test_ordered_settings_are_indices_and_the_others_categories() -> None:
    dists_of_space = distributions(SPACE)
    assert dists_of_space == {
        "micro_batch_size_index": IntDistribution(0, 3),
        "checkpointing": CategoricalDistribution(("none", "full")),
        "precision": CategoricalDistribution(("fp32", "bf16")),
        "workers_index": IntDistribution(0, 1),
        "pin_memory": CategoricalDistribution((True, False)),
    }


def test_a_baseline_outside_the_proposals_goes_to_optuna_and_back() -> None:
    baseline = Configuration.exact(8, 8, {"checkpointing": "full", "workers": 1})
    narrow = space(baseline, micro_batch_size=(1, 2, 4), checkpointing=("none",), workers=(0, 2))
    assert configuration_of(narrow, parameters(narrow, baseline)) == baseline
    assert distributions(narrow)["workers_index"] == IntDistribution(0, 2)
    for candidate in narrow:
        assert configuration_of(narrow, parameters(narrow, candidate)) == candidate


def score(measurement: Measurement | None) -> float:
    return float((measurement and measurement.samples_per_second) or 0.0)


def sampler_named(name: str, seed: int = 1) -> Sampler:
    return make_sampler(name, seed, SPACE, WarmStart(ALLOWED), score)


@pytest.mark.parametrize("name", OPTUNAS)
def test_every_sampler_proposes_what_is_not_measured_yet(name: str) -> None:
    sampler, trials = sampler_named(name), list[Trial]()
    for number in range(8):
        choice = sampler.choose(standing_of(trials))
        candidate = choice.configuration
        assert choice.why is Why.NEW
        assert candidate in SPACE
        assert candidate not in [trial.configuration for trial in trials]
        trials.append(Trial(number, candidate, machine(candidate)))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_makes_a_sampler_propose_the_same_again(name: str) -> None:
    def proposals() -> list[Configuration]:
        sampler, running = sampler_named(name, 7), dict[str, Configuration]()
        for device in "0123":
            running[device] = (
                sampler.choose(standing_of([]), Situation(running=running)).configuration or SPACE.baseline
            )
        return [*running.values()]

    assert proposals() == proposals()


def test_a_sampler_of_optuna_s_learns_what_was_measured_before_it_was_made() -> None:
    trials = [Trial(number, item, machine(item)) for number, item in enumerate([*SPACE][:8])]
    sampler = sampler_named("tpe")
    assert isinstance(sampler, OptunaSampler)
    choice = sampler.choose(standing_of(trials))
    assert [trial.value for trial in sampler.study.get_trials(states=[TrialState.COMPLETE])][:8] == [
        score(trial.measurement) for trial in trials
    ]
    assert choice.configuration not in [trial.configuration for trial in trials]


# Once it may propose nothing more -------------------------------------------------------------------------------


def measured(number: int, candidate: Configuration, *times: float) -> Trial:
    """A trial that began at these times."""
    first, *others = (replace(machine(candidate), started_s=time, round=at) for at, time in enumerate(times))
    return Trial(number, candidate, first, tuple(others))


BETTER = SPACE.configuration({**SPACE.baseline.values, "precision": "bf16"})
PROBE_S = machine(SPACE.baseline).probe_seconds
ONCE = [measured(0, SPACE.baseline, 0.0), measured(1, BETTER, PROBE_S)]
PROVEN = [
    measured(0, SPACE.baseline, 0.0, 2 * PROBE_S, 4 * PROBE_S),
    measured(1, BETTER, PROBE_S, 3 * PROBE_S, 5 * PROBE_S),
]


def test_the_probes_that_are_left_are_used_before_anything_is_measured_again() -> None:
    assert sampler_named("tpe").choose(standing_of(ONCE), Situation(probes_left=1)).why is Why.NEW
    again = sampler_named("tpe").choose(standing_of(ONCE), Situation(probes_left=0))
    assert again.why is Why.PROVE
    assert again.configuration in (SPACE.baseline, BETTER)


def test_time_that_a_proof_would_need_is_spent_on_probes_if_there_is_nothing_to_prove() -> None:
    sampler = sampler_named("tpe")
    for trials in (ONCE[:1], PROVEN):
        assert sampler.choose(standing_of(trials), Situation(seconds_left=1.1 * PROBE_S)).why is Why.NEW
        assert sampler.choose(standing_of(trials), Situation(seconds_left=0.9 * PROBE_S)).end is End.TIME


def test_a_probe_leaves_time_for_the_proof_and_the_proof_is_made_in_what_is_left() -> None:
    sampler = sampler_named("tpe")
    for probes, why in ((13.1, Why.NEW), (12.9, Why.PROVE)):
        situation = Situation(seconds_left=probes * PROBE_S, min_repeats=6)
        assert sampler.choose(standing_of(ONCE), situation).why is why, "six pairs and a probe"
    for trials, seconds_left in ((ONCE, 0.5 * PROBE_S), (PROVEN, 0.5 * PROBE_S), (PROVEN, 0.0)):
        end = sampler.choose(standing_of(trials), Situation(seconds_left=seconds_left))
        assert (end.configuration, end.end, end.winner) == (None, End.TIME, BETTER)


SMALL = space(micro_batch_size=(2,), precision=("fp32", "bf16"))


def test_it_ends_once_all_of_a_small_space_is_measured_and_proven() -> None:
    better = SMALL.configuration({**SMALL.baseline.values, "precision": "bf16"})
    sampler = make_sampler("random", 0, SMALL, WarmStart(ALLOWED), score)
    once = [measured(0, SMALL.baseline, 0.0), measured(1, better, PROBE_S)]
    assert sampler.choose(standing_of(once[:1]), Situation(running={"0": better})).why is not Why.NEW
    assert sampler.choose(standing_of(once)).why is Why.PROVE
    end = sampler.choose(standing_of([measured(0, SMALL.baseline, 0.0, 2.0, 4.0), measured(1, better, 1.0, 3.0, 5.0)]))
    assert (end.configuration, end.end, end.winner) == (None, End.ALL, better)
    assert end.stop is not None
    assert end.stop.text == "all configurations have been measured or ruled out"
