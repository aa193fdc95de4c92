"""The plain training of an answer: as many steps as asked, timed end to end, held to the same memory, nothing hidden."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.core.failures import Failure
from autotune.probe.order import Timing
from autotune.probe.process.launcher import ProbeHost
from tests.probe import misbehaviours
from tests.probe.probes import MIB, configuration, make_order

Attempt = Callable[..., tuple[Any, Failure | None]]


@pytest.fixture
def bert(host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path) -> Attempt:
    """`bert(timing(5))`: a plain training of a small BERT on 16 random tokens a sample."""

    def attempt(timing: Timing, **fields: Any) -> tuple[Any, Failure | None]:
        order = make_order(
            tmp_path,
            environment,
            kind="verification",
            workload=workload_of("bert-mini", sequence_length=16),
            deadline_s=300.0,
            timing=timing,
            **fields,
        )
        return host.attempt(order)

    return attempt


@pytest.fixture
def own(own_host: ProbeHost, environment: Environment, tmp_path: Path) -> Attempt:
    """`own("train nothing", steps=5)`: a plain training of a caller's own model, which does so."""

    def attempt(behaviour: str, steps: int, **fields: Any) -> tuple[Any, Failure | None]:
        order = make_order(
            tmp_path, environment, behaviour, kind="verification", timing=timing(steps), request={"round": 1}, **fields
        )
        return own_host.attempt(order)

    return attempt


def timing(steps: int, untimed: int = 1) -> Timing:
    """So many timed steps."""
    return Timing(untimed_least=untimed, timed_least=steps, timed_most=steps)


@pytest.mark.parametrize(("micro", "accumulation", "workers"), [(4, 1, 0), (2, 3, 0), (2, 2, 1)])
def test_as_many_steps_are_timed_as_were_asked_for(bert: Attempt, micro: int, accumulation: int, workers: int) -> None:
    value, failure = bert(timing(7), asked=configuration(micro, accumulation, workers=workers), allowed_bytes=500 * MIB)
    assert failure is None
    assert len(value["step_times_s"]) == len(value["data_wait_s"]) == 7
    assert value["untimed_steps"] == 1
    assert value["samples"] == 7 * micro * accumulation
    assert value["seconds"] == pytest.approx(sum(value["step_times_s"]))
    assert "swapped_bytes" in value["surroundings"], "read as around a probe"
    assert all(0 <= wait <= step for wait, step in zip(value["data_wait_s"], value["step_times_s"], strict=True))
    assert set(value["peaks"]) == {"peak_device_bytes", "peak_file_bytes"}, "no stages: it is not the worst batch"
    assert 0 <= value["peaks"]["peak_file_bytes"] < value["peaks"]["peak_device_bytes"]


def test_it_ends_when_the_seconds_are_over_with_the_steps_it_has(bert: Attempt) -> None:
    value, failure = bert(Timing(untimed_least=3, timed_least=1, timed_most=10_000, seconds=0.001))
    assert failure is None
    assert len(value["step_times_s"]) == 1
    assert value["untimed_steps"] == 3


@pytest.mark.nightly
def test_data_that_would_end_before_the_steps_is_repeated(own: Attempt) -> None:
    value, failure = own("", 10, asked=configuration(8, 2))
    assert failure is None
    assert value["samples"] == 160 > misbehaviours.SAMPLES


def test_a_training_held_to_too_little_ends_out_of_memory(bert: Attempt) -> None:
    value, failure = bert(timing(5), asked=configuration(16), allowed_bytes=15 * MIB)
    assert value is None
    assert failure is not None
    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert failure.reason


def test_a_training_that_takes_no_step_is_no_answer(own: Attempt) -> None:
    value, failure = own("train nothing", 5)
    assert value is None
    assert failure == Failure(Outcome.CRASHED, "RuntimeError: the training ended without a timed step", "verification")


# The clock, without a training -----------------------------------------------------------------------------------


def test_the_device_is_waited_for_only_where_the_timed_steps_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from autotune.probe.train.plain import Clock

    waited: list[int] = []
    read: list[tuple[str, int]] = []
    surroundings: Any = SimpleNamespace(
        start=lambda: read.append(("start", len(clock.ends))), stop=lambda: read.append(("stop", len(clock.ends)))
    )
    clock = Clock(timing(5, untimed=2), surroundings, cuda=True)
    control = SimpleNamespace(should_training_stop=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(len(clock.ends)))
    for _ in range(7):
        assert control.should_training_stop is False
        clock.on_step_end(None, None, control)
    assert waited == [0, 5]
    assert read == [("start", 0), ("stop", 6)], "outside of the timed steps"
    assert (len(clock.ends), clock.untimed) == (6, 2)
    assert control.should_training_stop is True


def test_steps_that_are_too_quick_do_not_count_before_the_untimed_seconds_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import time

    from autotune.probe.train.plain import Clock

    now = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    surroundings: Any = SimpleNamespace(start=lambda: None, stop=lambda: None)
    clock = Clock(Timing(untimed_least=2, untimed_seconds=4.0, timed_least=1, timed_most=2), surroundings)
    control = SimpleNamespace(should_training_stop=False)
    while not control.should_training_stop:
        clock.on_step_end(None, None, control)
    assert (clock.untimed, len(clock.ends)) == (5, 3)
