"""Orders for tests: a few steps of a caller's own objects or of a prepared workload, and their measurement."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.version import Version

from autotune.core import Configuration, Environment, Measurement, Workload
from autotune.probe import Host
from autotune.probe.order import Order, Timing
from autotune.probe.process.answers import read_answer
from autotune.space.setup import training_setup

QUICK = Timing(untimed_least=1, untimed_most=1, timed_least=3, timed_most=3, seconds=10.0)
"""The fewest steps that make a measurement: what is tested is not how fast they are."""

SLOWEST = 1e-6
"""Samples / second that every probe reaches: as one that is not a search's first, it does not look at what settings change."""

SETTINGS = {"checkpointing": "none", "precision": "fp32", "optimizer": "adamw_torch", "workers": 0, "pin_memory": False}
CALLERS = Workload(name="model_init", task="custom", user_objects=True, sequence_length=None)
MIB = 2**20


def bitsandbytes_steps_on_cpu() -> bool:
    return Version(version("bitsandbytes")) >= Version("0.50")


def configuration(micro: int = 4, accumulation: int = 1, **settings: Any) -> Configuration:
    return Configuration(micro, accumulation, settings=tuple({**SETTINGS, **settings}.items()))


def make_order(
    folder: Path,
    environment: Environment,
    behaviour: str = "",
    *,
    asked: Configuration | None = None,
    base: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
    **fields: Any,
) -> Order:
    """An order of `asked` (by default 4 samples a step); `behaviour` is what the caller's objects are to do."""
    asked = asked or configuration()
    workload = fields.pop("workload", CALLERS)
    setup = training_setup(asked, environment, base or {}, workload.task)
    return Order(
        **{
            "kind": "probe",
            "folder": str(folder),
            "deadline_s": 60.0,
            "configuration": asked,
            **{name: value for name, value in vars(setup).items() if name != "processes"},
            "process_environment": {
                **setup.process_environment,
                "BEHAVIOUR": behaviour,
                "BEHAVIOUR_FOLDER": str(folder),
                **(variables or {}),
            },
            "workload": workload,
            "environment": environment,
            "accumulation_steps_run": asked.gradient_accumulation_steps,
            "timing": QUICK,
            "speed_to_reach": SLOWEST,
            **fields,
        }
    )


def measured(host: Host, order: Order) -> Measurement:
    """What the order's probe brought back."""
    return read_answer(order, host.run(order))
