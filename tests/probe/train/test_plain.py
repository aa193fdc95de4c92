"""The plain training of an answer: as many steps as asked, timed end to end, held to the same memory, nothing hidden."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.core.failures import Failure
from autotune.probe.process.launcher import ProbeHost
from tests.probe import misbehaviours
from tests.probe.probes import MIB, configuration, make_order

Attempt = Callable[..., tuple[Any, Failure | None]]


@pytest.fixture
def bert(host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path) -> Attempt:
    """`bert(steps=5)`: a plain training of a small BERT on 16 random tokens a sample."""

    def attempt(steps: int, seconds: float | None = None, **fields: Any) -> tuple[Any, Failure | None]:
        order = make_order(
            tmp_path,
            environment,
            kind="verification",
            workload=workload_of("bert-mini", sequence_length=16),
            deadline_s=300.0,
            request={"steps": steps, "seconds": seconds},
            **fields,
        )
        return host.attempt(order)

    return attempt


@pytest.fixture
def own(own_host: ProbeHost, environment: Environment, tmp_path: Path) -> Attempt:
    """`own("train nothing", steps=5)`: a plain training of a caller's own model, which does so."""

    def attempt(behaviour: str, steps: int, **fields: Any) -> tuple[Any, Failure | None]:
        request = {"steps": steps, "seconds": None}
        return own_host.attempt(
            make_order(tmp_path, environment, behaviour, kind="verification", request=request, **fields)
        )

    return attempt


@pytest.mark.parametrize(("micro", "accumulation", "workers"), [(4, 1, 0), (2, 3, 0), (2, 2, 1)])
def test_as_many_steps_are_timed_as_were_asked_for(bert: Attempt, micro: int, accumulation: int, workers: int) -> None:
    value, failure = bert(7, asked=configuration(micro, accumulation, workers=workers), allowed_bytes=500 * MIB)
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
    value, failure = bert(10_000, seconds=0.001)
    assert failure is None
    assert len(value["step_times_s"]) == 1
    assert value["untimed_steps"] == 10


@pytest.mark.nightly
def test_data_that_would_end_before_the_steps_is_repeated(own: Attempt) -> None:
    value, failure = own("", 10, asked=configuration(8, 2))
    assert failure is None
    assert value["samples"] == 160 > misbehaviours.SAMPLES


def test_a_training_held_to_too_little_ends_out_of_memory(bert: Attempt) -> None:
    value, failure = bert(5, asked=configuration(16), allowed_bytes=15 * MIB)
    assert value is None
    assert failure is not None
    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert failure.reason


def test_a_training_that_takes_no_step_is_no_answer(own: Attempt) -> None:
    value, failure = own("train nothing", 5)
    assert value is None
    assert failure == Failure(Outcome.CRASHED, "RuntimeError: the training ended without a timed step", "verification")


# The clock, without a training -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "untimed"), [(1, 1), (4, 1), (5, 1), (20, 4), (50, 10), (500, 10)])
def test_the_first_steps_do_not_count_at_most_a_fifth_of_them(steps: int, untimed: int) -> None:
    from autotune.probe.train.plain import untimed_steps

    assert untimed_steps(steps) == untimed


def test_the_device_is_waited_for_only_where_the_timed_steps_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from autotune.probe.train.plain import Clock

    waited: list[int] = []
    read: list[tuple[str, int]] = []
    surroundings: Any = SimpleNamespace(
        start=lambda: read.append(("start", len(clock.ends))), stop=lambda: read.append(("stop", len(clock.ends)))
    )
    clock = Clock(untimed=2, steps=5, seconds=None, surroundings=surroundings, cuda=True)
    control = SimpleNamespace(should_training_stop=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(len(clock.ends)))
    for step in range(1, 8):
        assert control.should_training_stop is False
        clock.on_step_end(None, SimpleNamespace(global_step=step), control)
    assert waited == [0, 5]
    assert read == [("start", 0), ("stop", 6)], "outside of the timed steps"
    assert len(clock.ends) == 6
    assert control.should_training_stop is True
