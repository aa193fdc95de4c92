"""Who proposes: every sampler on a small world, and configurations as Optuna's parameters."""

import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from autotune.core import Configuration, Measurement, Trial
from autotune.core.request import SAMPLERS
from autotune.sampler.optuna_samplers import OptunaSampler, Sampler, make_sampler, study_of
from autotune.sampler.parameters import configuration_of, distributions, parameters
from autotune.sampler.physics import WarmStart
from tests.makers import ALLOWED, machine, space

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


def test_every_configuration_goes_to_optuna_and_back() -> None:
    dists = distributions(SPACE)
    for candidate in SPACE:
        given = parameters(SPACE, candidate)
        assert configuration_of(SPACE, given) == candidate
        for name, value in given.items():
            assert dists[name]._contains(dists[name].to_internal_repr(value))


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


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_proposes_what_is_not_measured_yet(name: str) -> None:
    sampler, trials = sampler_named(name), list[Trial]()
    for number in range(12):
        candidate = sampler.propose(trials).configuration
        assert candidate in SPACE
        assert candidate not in [trial.configuration for trial in trials]
        trials.append(Trial(number, candidate, machine(candidate)))
    told = study_of(trials, SPACE, score).trials
    assert [trial.user_attrs["number"] for trial in told] == [*range(12)]
    assert all(trial.constraints.keys() == {"fits"} for trial in told)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_makes_a_sampler_propose_the_same_again(name: str) -> None:
    def proposals() -> list[Configuration | None]:
        sampler, running = sampler_named(name, 7), list[Configuration]()
        for _ in range(4):
            running.append(sampler.propose([], running).configuration or SPACE.baseline)
        return running

    assert proposals() == proposals()


def test_a_sampler_of_optuna_s_learns_what_was_measured_before_it_was_made() -> None:
    trials = [Trial(number, item, machine(item)) for number, item in enumerate([*SPACE][:8])]
    sampler = sampler_named("tpe")
    assert isinstance(sampler, OptunaSampler)
    proposal = sampler.propose(trials)
    assert [trial.value for trial in sampler.study.get_trials(states=[TrialState.COMPLETE])][:8] == [
        score(trial.measurement) for trial in trials
    ]
    assert proposal.configuration not in [trial.configuration for trial in trials]


def test_an_unknown_sampler_is_none() -> None:
    with pytest.raises(KeyError):
        make_sampler("luck", 0, SPACE, WarmStart(ALLOWED), score)
