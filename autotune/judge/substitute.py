"""Substitute of a baseline that does not fit: the least change of it that does, with which others are compared."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from autotune.core import Configuration, Trial
from autotune.core.configuration import RANKS, Value
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, learning_differences

LEANER: tuple[tuple[str, Value], ...] = (
    ("checkpointing", "full"),
    ("fsdp", "full_shard"),
    ("precision", "bf16_weights"),
)
"""Settings with their values that save memory, in the order in which a user would try them once a smaller micro-batch does
not help; sharding takes as many ranks as there are. Weights in 16 bits learn differently: they come last."""


def substitute(trials: Sequence[Trial]) -> Trial | None:
    """The measured trial that changes the least of a baseline without enough memory; None if the baseline runs, or none does."""
    baseline = next((trial for trial in trials if trial.number == 0), None)
    if baseline is None or not baseline.lacked_memory:
        return None
    able = [trial for trial in trials if trial.feasible and not trial.measurement.ended_early]
    return min(
        (trial for trial in able if _is_change(trial.configuration, baseline.configuration)),
        key=lambda trial: _size(trial.configuration, baseline.configuration),
        default=None,
    )


def compared_with(trials: Sequence[Trial]) -> Trial | None:
    """The trial with which the others are compared: the baseline, or its substitute; None if neither runs."""
    baseline = next((trial for trial in trials if trial.number == 0), None)
    return baseline if baseline is not None and baseline.feasible else substitute(trials)


def changes_of(space: SearchSpace) -> Iterator[Configuration]:
    """Configurations of the space that need less memory than its baseline, the least change first."""
    baseline = space.baseline
    available = [(name, value) for name, value in LEANER if value in space.values.get(name, ())]
    ranks = space.values.get(RANKS, ())
    configurations = set()
    for count in range(len(available) + 1):
        for changes in combinations(available, count):
            values = {**baseline.values, **dict(changes)}
            if values.get("fsdp", "none") != "none" and ranks:
                values[RANKS] = max(ranks, key=int)
            for size in sorted(map(int, space.values[MICRO]), reverse=True):
                configuration = space.configuration({**values, MICRO: size})
                if configuration in space and _is_change(configuration, baseline):
                    configurations.add(configuration)
    yield from sorted(configurations, key=lambda configuration: _size(configuration, baseline))


def _is_change(configuration: Configuration, baseline: Configuration) -> bool:
    """True if it differs from the baseline by what saves memory alone."""
    if configuration == baseline or configuration.micro_batch_size > baseline.micro_batch_size:
        return False
    changed = {name: value for name, value in configuration.settings if baseline.values.get(name) != value}
    is_sharded = changed.get("fsdp", "none") != "none"
    changed = {name: value for name, value in changed.items() if not (is_sharded and name == RANKS)}
    return {*changed.items()} <= {*LEANER}


def _size(configuration: Configuration, baseline: Configuration) -> tuple[int, int, int]:
    """Size of a change, for comparisons: first by what learns differently, then by settings, then by the micro-batch."""
    changed = [name for name, value in configuration.settings if baseline.values.get(name) != value]
    return len(learning_differences(configuration, baseline)), len(changed), -configuration.micro_batch_size
