"""Asks a child for the traces that a set of configurations needs: their peaks before any probe."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.core.configuration import Configuration
from autotune.core.environment import Environment
from autotune.core.errors import TracingFailed
from autotune.core.workload import Workload
from autotune.memory.estimate import MemoryModel, memory_model
from autotune.memory.keys import wanted_traces
from autotune.probe.order import Order
from autotune.probe.process.launcher import ProbeHost

TRACING_S = 900.0
"""Deadline for all traces of a model: seconds for most, minutes for one that must be traced with all its layers."""


def traced(
    host: ProbeHost,
    workload: Workload,
    environment: Environment,
    configurations: Iterable[Configuration],
    base: Mapping[str, Any],
    context_bytes: int | None = None,
    seconds: float = math.inf,
) -> MemoryModel:
    """The model of memory that knows these configurations and all others with the same values at other micro-batches.

    environment: of the device that is meant, which need not be here. base: the user's own arguments, those that differ
    from the defaults. context_bytes: default the environment's. seconds: for all of it, after half of which
    no further combination is traced. Raises TracingFailed where tracing itself fails, and for a
    caller's own model, which has no config to build it from.
    """
    if workload.user_objects:
        raise TracingFailed(
            "A model of your own cannot be traced without running it.", "Name a model, folder or config instead."
        )
    wanted = wanted_traces(configurations, environment, base, workload.task)
    order = Order(
        kind="trace",
        folder=str(host.scratch_folder()),
        deadline_s=min(TRACING_S, seconds),
        workload=workload,
        request=wanted.request() | ({"seconds": seconds / 2} if math.isfinite(seconds) else {}),
    )
    answer, failure = host.attempt(order)
    if failure is not None:
        raise TracingFailed(
            f"Tracing {workload.name} failed: {failure.reason}.", "Let `autotune search` measure instead."
        )
    return memory_model(answer, wanted, environment, base, context_bytes)
