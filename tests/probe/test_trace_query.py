"""Asking a child for traces: what has no config, and what fails, is said in one line."""

from typing import Any

import pytest

from autotune.core.environment import Environment
from autotune.core.errors import TracingFailed
from autotune.core.failures import Failure
from autotune.core.measurement import Outcome
from autotune.core.workload import Workload
from autotune.probe.trace_query import traced

CPU = Environment("cpu", "a CPU", 2**33, 2**33)


class Host:
    """A host whose child meets nothing but failure."""

    def scratch_folder(self) -> str:
        return "nowhere"

    def attempt(self, order: Any) -> tuple[Any, Failure | None]:
        assert order.kind == "trace"
        return None, Failure(Outcome.CRASHED, "it broke")


def test_a_caller_s_own_model_cannot_be_traced() -> None:
    with pytest.raises(TracingFailed, match="model of your own"):
        traced(Host(), Workload("model_init", "custom", user_objects=True), CPU, [], {})  # type: ignore[arg-type]


def test_a_child_that_fails_is_an_error_with_its_reason() -> None:
    with pytest.raises(TracingFailed, match="it broke"):
        traced(Host(), Workload("bert", "masked-lm"), CPU, [], {})  # type: ignore[arg-type]
