"""The sampler `physics`: alone, beside what runs, and in spaces too large to score whole."""

from autotune.core import Configuration, Outcome, Trial
from autotune.sampler.candidates import POOL, pool
from autotune.sampler.physics import PhysicsSampler, WarmStart
from autotune.space.search_space import SearchSpace
from tests.makers import ALLOWED, MIB, machine, space

SPACE = space(checkpointing=("none", "full"), precision=("fp32", "bf16"), workers=(0, 2))


def estimate(candidate: Configuration) -> float:
    """The small world's peaks, 40 MiB too low."""
    return (machine(candidate).peak_bytes or machine(candidate).held_bytes or 0) - 40.0 * MIB


KNOWLEDGE = WarmStart(ALLOWED, estimate)


def tried_by(sampler: PhysicsSampler, count: int) -> list[Configuration]:
    """The configurations that this number of probes of the small world tries."""
    trials: list[Trial] = []
    for number in range(count):
        chosen = sampler.propose(trials).configuration
        assert chosen is not None
        trials.append(Trial(number, chosen, machine(chosen)))
    return [trial.configuration for trial in trials]


def test_it_begins_with_the_baseline_and_repeats_nothing() -> None:
    tried = tried_by(PhysicsSampler(SPACE, KNOWLEDGE), 10)
    assert tried[0] == SPACE.baseline
    assert len(set(tried)) == 10


def test_the_best_of_the_small_world_is_found_in_few_probes() -> None:
    tried = tried_by(PhysicsSampler(SPACE, KNOWLEDGE), 6)
    fastest = max(SPACE, key=lambda candidate: float(machine(candidate).samples_per_second or 0.0))
    assert fastest in tried
    assert all(machine(candidate).outcome is not Outcome.OUT_OF_MEMORY for candidate in tried)


def test_what_runs_is_not_proposed_beside_it() -> None:
    sampler, trials = PhysicsSampler(SPACE, KNOWLEDGE), [Trial(0, SPACE.baseline, machine(SPACE.baseline))]
    running: list[Configuration] = []
    for _ in range(5):
        chosen = sampler.propose(trials, running).configuration
        assert chosen is not None
        running.append(chosen)
    assert len({SPACE.baseline, *running}) == 6


def test_without_an_estimate_it_grows_with_care() -> None:
    tried = tried_by(PhysicsSampler(SPACE, WarmStart(ALLOWED)), 10)
    fastest = max(SPACE, key=lambda candidate: float(machine(candidate).samples_per_second or 0.0))
    assert fastest in tried
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


def test_of_a_small_space_all_are_considered() -> None:
    assert set(pool([SPACE], [SPACE.baseline], [], KNOWLEDGE.prior, seed=1)) == set(SPACE)


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
    sampler.propose(trials)
    assert sampler.simpler(trials, both) == larger
    assert sampler.simpler([*trials, Trial(6, larger, machine(larger))], both) is None, "it is measured"
    assert sampler.simpler(trials, SPACE.baseline) is None
