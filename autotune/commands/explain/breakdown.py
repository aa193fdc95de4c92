"""Memory breakdown of configurations, and their arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core import Configuration, Environment, Workload
from autotune.core.errors import TracingFailed
from autotune.core.io import Serializable
from autotune.memory.estimate import NotTraced
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import known_rates, traced
from autotune.space.utilization import Arithmetic
from autotune.study.warm_start import arithmetic_of


@dataclass(frozen=True)
class MemoryBreakdown(Serializable):
    """peaks: name of a configuration -> `MemoryPeak.to_dict()`, None where it could not be traced (problems: why).

    arithmetic: operations of a sample, and of the device's fastest products.
    """

    peaks: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    problems: tuple[str, ...] = ()


def memory_breakdown(
    host: ProbeHost,
    workload: Workload,
    environment: Environment,
    base: Mapping[str, Any],
    configurations: Mapping[str, Configuration],
) -> MemoryBreakdown:
    """Of these configurations, by name; one that cannot be traced is a problem in the result, not an error."""
    try:
        model = traced(host, workload, environment, configurations.values(), base)
    except TracingFailed as failed:
        return MemoryBreakdown(dict.fromkeys(configurations), problems=(failed.written[0],))
    peaks: dict[str, Mapping[str, Any] | None] = dict.fromkeys(configurations)
    problems: dict[str, None] = {}
    for name, configuration in configurations.items():
        try:
            peaks[name] = model.peak(configuration).to_dict()
        except NotTraced as error:
            problems[str(error)] = None
    return MemoryBreakdown(peaks, arithmetic_of(model, known_rates(host, environment)), tuple(problems))
