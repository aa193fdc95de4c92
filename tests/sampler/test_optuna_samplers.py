"""Who proposes: every sampler on a small world, and configurations as Optuna's parameters."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from autotune.core.configuration import Configuration
from autotune.core.request import SAMPLERS
from autotune.sampler.optuna_samplers import make_sampler
from autotune.sampler.parameters import configuration_of, distributions, parameters
from autotune.sampler.physics import WarmStart, to_attrs
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


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_proposes_configurations_and_takes_their_values(name: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=make_sampler(name, 1, SPACE, WarmStart(ALLOWED)))
    seen = set()
    for _ in range(12):
        running = study.ask(distributions(SPACE))
        candidate = configuration_of(SPACE, running.params)
        assert candidate in SPACE
        seen.add(candidate)
        for attribute, value_of_attribute in to_attrs(candidate, machine(candidate)).items():
            running.set_user_attr(attribute, value_of_attribute)
        running.set_constraint("fits", machine(candidate).fits)
        study.tell(running, float(machine(candidate).samples_per_second or 0.0))
    assert len(seen) > 3
    assert all(trial.constraints.keys() == {"fits"} for trial in study.trials)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_seed_makes_a_sampler_propose_the_same_again(name: str) -> None:
    def proposals() -> list[Configuration]:
        study = optuna.create_study(sampler=make_sampler(name, 7, SPACE, WarmStart(ALLOWED)))
        return [configuration_of(SPACE, study.ask(distributions(SPACE)).params) for _ in range(4)]

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    assert proposals() == proposals()


def test_an_unknown_sampler_is_none() -> None:
    with pytest.raises(KeyError):
        make_sampler("luck", 0, SPACE, WarmStart(ALLOWED))
