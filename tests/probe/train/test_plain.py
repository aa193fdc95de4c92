"""The plain training of an answer: as many steps as asked, timed end to end, held to the same memory, nothing hidden."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.core.failures import Failure
from autotune.probe.order import Timing
from autotune.probe.process import answers
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.train.plain import PlainTimer
from tests.probe.probes import MIB, configuration, make_order
from tests.stream import FakeMonitor, Machine

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
        return answers.attempt(host, order)

    return attempt


@pytest.fixture
def own(own_host: ProbeHost, environment: Environment, tmp_path: Path) -> Attempt:
    """`own("train nothing", steps=5)`: a plain training of a caller's own model, which does so."""

    def attempt(behaviour: str, steps: int, **fields: Any) -> tuple[Any, Failure | None]:
        order = make_order(
            tmp_path, environment, behaviour, kind="verification", timing=timing(steps), request={"round": 1}, **fields
        )
        return answers.attempt(own_host, order)

    return attempt


def timing(steps: int, untimed: int = 1) -> Timing:
    """So many timed steps."""
    return Timing(untimed_least=untimed, timed_least=steps, timed_most=steps)


def test_as_many_steps_are_timed_as_were_asked_for(bert: Attempt) -> None:
    value, failure = bert(timing(7), asked=configuration(2, 3, workers=1), allowed_bytes=500 * MIB)
    assert failure is None
    assert len(value["step_times_s"]) == len(value["data_wait_s"]) == 7
    assert value["untimed_steps"] == 1
    assert value["samples"] == 7 * 2 * 3
    assert value["seconds"] == pytest.approx(sum(value["step_times_s"]))
    assert "swapped_bytes" in value["system_state"], "read as around a probe"
    assert all(0 <= wait <= step for wait, step in zip(value["data_wait_s"], value["step_times_s"], strict=True))
    assert set(value["peaks"]) == {"peak_device_bytes", "peak_file_bytes"}, "no stages: it is not the worst batch"
    assert 0 <= value["peaks"]["peak_file_bytes"] < value["peaks"]["peak_device_bytes"]


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


# The timer, without a training -----------------------------------------------------------------------------------


def test_the_device_is_waited_for_only_where_the_timed_steps_begin_and_end() -> None:
    rank = Machine().ranks[0]
    monitor = FakeMonitor(rank, seconds=100.0)
    timer = PlainTimer(timing(5, untimed=2), monitor, rank)  # type: ignore[arg-type]
    control = SimpleNamespace(should_training_stop=False)
    for _ in range(7):
        assert control.should_training_stop is False
        rank.launch(1.0, 0.1)
        timer.on_step_end(None, None, control)
    assert rank.synchronized == pytest.approx([2.0, 107.0])
    assert monitor.read == ["start", "stop"]
    assert (len(timer.ends), timer.untimed) == (6, 2)
    assert timer.ends[-1] - timer.ends[0] == pytest.approx(5.0), "without reading the system's state"
    assert control.should_training_stop is True
