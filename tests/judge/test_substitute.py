"""Least change of a baseline that does not fit: which ones there are, and which one others are compared with."""

from dataclasses import replace

from autotune.core import Configuration, Outcome, Trial
from autotune.judge.substitute import changes_of, compared_with, substitute
from tests.makers import completed, ended, out_of_memory, space, trial

BF16 = {"checkpointing": ("none", "full"), "precision": ("fp32", "bf16", "bf16_weights"), "workers": (0, 2)}
SHARDED = {"fsdp": ("none", "full_shard"), "data_parallel_size": (1, 2, 4)}


def words(configuration: Configuration) -> str:
    changed = [f"{name} {value}" for name, value in configuration.settings if value not in ("none", "fp32", 0, 1)]
    return " ".join([str(configuration.micro_batch_size), *changed])


def test_the_least_change_comes_first() -> None:
    of = space(baseline=space(**BF16).baseline, **BF16)
    assert [words(change) for change in changes_of(of)] == [
        "1",
        "2 checkpointing full",
        "1 checkpointing full",
        "2 precision bf16_weights",
        "1 precision bf16_weights",
        "2 checkpointing full precision bf16_weights",
        "1 checkpointing full precision bf16_weights",
    ]


def tried(micro: int, **settings: str | int) -> Configuration:
    return Configuration.exact(8, micro, {"checkpointing": "none", "precision": "fp32", "workers": 0, **settings})


LOST = Trial(0, tried(8), out_of_memory(tried(8)))


def test_a_baseline_that_runs_has_no_substitute() -> None:
    runs = trial(0, of=tried(8))
    assert substitute([runs, trial(1, of=tried(1))]) is None
    assert compared_with([runs]) is runs
    assert compared_with([]) is None


def test_the_substitute_is_the_measured_trial_with_the_least_change() -> None:
    lean, small, other = tried(8, checkpointing="full"), tried(2), tried(4, workers=2)
    trials = [
        LOST,
        trial(1, of=other),
        trial(2, of=lean),
        trial(3, of=small),
        Trial(4, tried(4), out_of_memory(tried(4))),
    ]
    assert substitute(trials) is trials[3], "a smaller micro-batch changes no setting"
    assert compared_with(trials) is trials[3]
    assert substitute(trials[:3]) is trials[2]
    assert substitute(trials[:2]) is None, "more than memory was changed"
    ended_early = replace(trials[3], measurement=completed(small, ended_early=True))
    assert substitute([LOST, ended_early]) is None


def test_weights_that_learn_differently_are_a_substitute_if_nothing_else_fits() -> None:
    pure = trial(1, of=tried(8, precision="bf16_weights"))
    assert substitute([LOST, pure]) is pure
    lean = trial(2, of=tried(1, checkpointing="full"))
    assert substitute([LOST, pure, lean]) is lean


def test_what_failed_for_another_reason_has_no_substitute() -> None:
    for outcome in (Outcome.UNSUPPORTED, Outcome.TIMED_OUT):
        assert substitute([Trial(0, tried(8), ended(outcome)), trial(1, of=tried(1))]) is None
    of_workers = Trial(0, tried(8), out_of_memory(tried(8), where="data"))
    assert substitute([of_workers, trial(1, of=tried(1))]) is None
