"""Anatomy: what the memory of a configuration is for, and how much of the device's arithmetic a training uses."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.configuration import Configuration
from autotune.environment import Environment
from autotune.errors import TracingFailed
from autotune.levers import LEVERS
from autotune.memory_estimate import MemoryModel, NotTraced
from autotune.probe.launcher import ProbeHost
from autotune.rates import known_rates
from autotune.tracing import traced
from autotune.trial import Trial
from autotune.workload import Workload


@dataclass(frozen=True)
class Anatomy:
    """peaks: name of a configuration -> `MemoryPeak.to_dict()`, None where it could not be traced, and `problems` says why.

    sample_operations: floating-point operations of one sample's forward and backward, None where they could not be
    counted. device_operations: name -> operations / second of the device's fastest product at that precision.
    """

    peaks: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    sample_operations: float | None = None
    device_operations: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def utilization(self, name: str, trial: Trial) -> float | None:
        """Arithmetic of the model that the trial did in a second, as a share of what the device can do; None: unknown.

        What checkpointing computes again is not counted (PaLM, appendix B, calls this model FLOPs utilization).
        """
        speed, most = trial.samples_per_second, self.device_operations.get(name)
        if not speed or not most or not self.sample_operations:
            return None
        return self.sample_operations * float(speed) / trial.configuration.data_parallel_size / most

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Anatomy":
        return cls(**{**data, "problems": tuple(data["problems"])})


def dissect(
    host: ProbeHost,
    workload: Workload,
    environment: Environment,
    base: Mapping[str, Any],
    configurations: Mapping[str, Configuration],
) -> Anatomy:
    """The anatomy of these configurations, by name; one that cannot be traced is a problem told, not an error."""
    try:
        model = traced(host, workload, environment, configurations.values(), base)
    except TracingFailed as failed:
        return Anatomy(dict.fromkeys(configurations), problems=(failed.written[0],))
    found = {name: _peak(model, one) for name, one in configurations.items()}
    rates = known_rates(host, environment)
    precisions = {name: _precision(one, base, environment, workload) for name, one in configurations.items()}
    return Anatomy(
        {name: peak for name, (peak, _) in found.items()},
        (model.arithmetic or {}).get("flops"),
        {name: rates[precision] for name, precision in precisions.items() if precision in rates},
        tuple(dict.fromkeys([problem for _, problem in found.values() if problem])),
    )


def _peak(model: MemoryModel, configuration: Configuration) -> tuple[dict[str, Any] | None, str]:
    try:
        return model.peak(configuration).to_dict(), ""
    except NotTraced as error:
        return None, str(error)


def _precision(
    configuration: Configuration, base: Mapping[str, Any], environment: Environment, workload: Workload
) -> str:
    own = configuration.values.get("precision")
    return str(own if own is not None else LEVERS["precision"].own(base, environment, workload))
