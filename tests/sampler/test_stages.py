"""What of a space is searched first."""

from dataclasses import replace

from autotune.core import Configuration, Trial
from autotune.judge.observation import Observation, observed
from autotune.sampler.candidates import narrowed, stages
from autotune.sampler.constants import BEST, POOL
from autotune.sampler.physics import PhysicsSampler
from autotune.sampler.warm_start import WarmStart
from tests.makers import ALLOWED, machine, space, standing_of
from tests.sampler.test_physics import estimate, large, tried_by

CORE = ("micro_batch_size", "precision")
SPACE = replace(
    space(checkpointing=("none", "full"), precision=("fp32", "bf16"), workers=(0, 2, 4), pin_memory=(True, False)),
    core=CORE,
)


def seen(candidate: Configuration) -> Observation:
    return observed(candidate, machine(candidate))


def test_then_the_others_are_tried_around_the_three_best_of_the_core() -> None:
    core = narrowed(SPACE, {name: SPACE.baseline.values[name] for name in SPACE.values if name not in CORE})
    observations = [seen(candidate) for candidate in core if machine(candidate).feasible]
    fastest = sorted(observations, key=lambda candidate: candidate.step_s or 0.0)[:BEST]
    ((rest, *around),) = stages(SPACE, observations, len(observations))
    assert rest == core
    assert [tuple(part.values[name] for name in CORE) for part in around] == [
        tuple((candidate.configuration.values[name],) for name in CORE) for candidate in fastest
    ]
    assert all(part.values["workers"] == SPACE.values["workers"] for part in around)


def test_the_core_is_searched_first_and_the_rest_by_what_is_left_of_the_probes() -> None:
    among = replace(SPACE, core=(*CORE, "checkpointing"))
    sampler = PhysicsSampler(among, WarmStart(ALLOWED, estimate, core_probes=3))
    own = among.baseline.values
    tried = tried_by(sampler, 8)
    outside = [
        {name for name in own if name not in among.core and candidate.values[name] != own[name]} for candidate in tried
    ]
    assert not any(outside[:3])
    baseline = Trial(0, among.baseline, machine(among.baseline))
    core = narrowed(among, {"workers": own["workers"], "pin_memory": own["pin_memory"]})
    assert sampler.choose(standing_of([baseline])).untried == len(list(core)) - 1
    assert any(outside[3:])
    assert len(set(tried)) == 8


def test_where_the_core_has_nothing_left_to_win_the_rest_is_tried_at_once() -> None:
    knowledge = WarmStart(ALLOWED, estimate, core_probes=50)
    small = replace(space(precision=("fp32",), micro_batch_size=(1, 2), pin_memory=(False, True)), core=CORE)
    sampler = PhysicsSampler(small, knowledge)
    tried = tried_by(sampler, 4)
    assert {candidate.values["pin_memory"] for candidate in tried} == {False, True}


def test_a_huge_space_is_searched_in_parts_of_the_pool() -> None:
    base = large().baseline
    own = replace(base, settings=(*base.settings, ("empty_cache_steps", 0)))
    values = {**large().values, "empty_cache_steps": tuple(range(64))}
    huge = replace(large(), values=values, baseline=own, core=(*CORE, "checkpointing"))
    sampler = PhysicsSampler(huge, WarmStart(ALLOWED, estimate))
    tried = tried_by(sampler, 3)
    choice = sampler.choose(standing_of([Trial(number, item, machine(item)) for number, item in enumerate(tried)]))
    assert choice.configuration in huge
    assert choice.configuration not in tried
    assert 1000 < choice.untried <= POOL


def test_ranks_that_come_after_the_core_find_a_micro_batch_of_their_own() -> None:
    among = replace(space(precision=("fp32", "bf16"), data_parallel_size=(1, 2, 4, 8)), core=CORE)
    knowledge = WarmStart(ALLOWED, estimate, core_probes=2)
    sampler = PhysicsSampler(among, knowledge)
    tried = tried_by(sampler, 8)
    assert {candidate.global_batch_size for candidate in tried} == {8}
    assert max(candidate.data_parallel_size for candidate in tried) > 1
