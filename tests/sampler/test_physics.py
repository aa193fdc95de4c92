"""The sampler `physics` as Optuna sees it: alone, beside other workers, and in spaces too large to score whole."""

import threading
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

from autotune.core import Configuration, Outcome
from autotune.probe import ProbeOptions
from autotune.probe.replay import ReplayProbe
from autotune.sampler.candidates import POOL, pool
from autotune.sampler.parameters import configuration_of, distributions
from autotune.sampler.physics import PhysicsSampler, WarmStart, to_attrs
from autotune.space.search_space import SearchSpace
from tests.makers import ALLOWED, MIB, machine, space

SPACE = space(checkpointing=("none", "full"), precision=("fp32", "bf16"), workers=(0, 2))


def estimate(candidate: Configuration) -> float:
    """The small world's peaks, 40 MiB too low."""
    return (machine(candidate).peak_bytes or machine(candidate).held_bytes or 0) - 40.0 * MIB


KNOWLEDGE = WarmStart(ALLOWED, estimate)


def step(study: optuna.Study, space: SearchSpace = SPACE, probe: ReplayProbe | None = None) -> Configuration:
    """Ask, probe and tell, as the loop does."""
    running = study.ask(distributions(space))
    configuration = configuration_of(space, running.params)
    measurement = (probe or ReplayProbe(machine))(configuration, ProbeOptions(running.number, 60.0))
    for name, attribute in to_attrs(configuration, measurement).items():
        running.set_user_attr(name, attribute)
    running.set_constraint("fits", measurement.fits)
    study.tell(running, float(measurement.samples_per_second or 0.0))
    return configuration


def new_study(storage: RDBStorage | None = None, seed: int = 0) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = PhysicsSampler(SPACE, KNOWLEDGE, seed)
    return optuna.create_study(
        direction="maximize", sampler=sampler, storage=storage, study_name="one", load_if_exists=True
    )


def test_as_any_sampler_it_begins_with_the_baseline_and_repeats_nothing() -> None:
    study = new_study()
    tried = [step(study) for _ in range(10)]
    assert tried[0] == SPACE.baseline
    assert len(set(tried)) == 10


def test_the_best_of_the_small_world_is_found_in_few_probes() -> None:
    study = new_study()
    tried = [step(study) for _ in range(6)]
    fastest = max(SPACE, key=lambda candidate: float(machine(candidate).samples_per_second or 0.0))
    assert fastest in tried
    assert all(machine(candidate).outcome is not Outcome.OUT_OF_MEMORY for candidate in tried)


def test_it_learns_nothing_from_trials_that_carry_nothing() -> None:
    study = new_study()
    running = study.ask(distributions(SPACE))
    study.tell(running, 1.0)
    assert step(study) == SPACE.baseline


def test_two_workers_on_one_study_probe_nothing_twice(tmp_path: Path) -> None:
    def storage() -> RDBStorage:
        return RDBStorage(f"sqlite:///{tmp_path / 'study.db'}", {"poolclass": NullPool})

    step(new_study(storage()))
    probes = [ReplayProbe(machine), ReplayProbe(machine)]
    together = threading.Barrier(2)

    def work(probe: ReplayProbe) -> None:
        study = new_study(storage())
        for _ in range(5):
            together.wait(timeout=30)
            step(study, probe=probe)

    workers = [threading.Thread(target=work, args=(probe,)) for probe in probes]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    asked = [configuration for probe in probes for configuration, _ in probe.asked]
    assert len(asked) == 10
    assert len(set(asked)) == 10


def test_without_an_estimate_it_grows_with_care() -> None:
    study = optuna.create_study(direction="maximize", sampler=PhysicsSampler(SPACE, WarmStart(ALLOWED)))
    tried = [step(study) for _ in range(10)]
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
