"""Compiling: torch turns the model into fused kernels at its first steps, so that a probe of it is a dear one."""

from collections.abc import Mapping
from typing import Any

from autotune.configuration import Value
from autotune.environment import Environment
from autotune.levers.lever import Lever, Observed, Settings, one_of
from autotune.workload import Workload

FIELDS = ON, MODE, BACKEND = "torch_compile", "torch_compile_mode", "torch_compile_backend"

MODES = ("default", "reduce_overhead", "max_autotune")

EXPECTED_S = {"default": 60.0, "reduce_overhead": 75.0, "max_autotune": 180.0}
"""Seconds of compiling a model of some hundred million parameters: assumptions, of the order that people report. The first
probe of a value tells its own."""


def is_on(base: Mapping[str, Any]) -> bool:
    """A mode or a backend implies it (`TrainingArguments.torch_compile_mode`)."""
    return any(base.get(field) for field in FIELDS)


def _own(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    return one_of(*MODES)(base.get(MODE) or "default") if is_on(base) else "none"


def _apply(value: Value, environment: Environment) -> Settings:
    """Compiling switches TF32 on for the whole process where nobody says otherwise: here somebody does."""
    if value == "none":
        return Settings({ON: False}, contradicts=(MODE, BACKEND), defaults={MODE: None, BACKEND: None})
    if value == "default":
        return Settings({ON: True}, contradicts=(MODE,), defaults={MODE: None, "tf32": False})
    # A mode is inductor's: no other backend takes it.
    mode = str(value).replace("_", "-")
    return Settings({ON: True, MODE: mode}, contradicts=(BACKEND,), defaults={BACKEND: "inductor", "tf32": False})


def backend_of(trainer: Any) -> str:
    """What accelerate compiles the trainer's model with, as `inductor`; `no` where it compiles nothing, empty where it does
    not say."""
    plugin = getattr(getattr(trainer.accelerator, "state", None), "dynamo_plugin", None)
    backend = getattr(plugin, "backend", "")
    return str(getattr(backend, "value", backend)).lower()


def _read_back(observed: Observed) -> str:
    """By its effect: whether torch compiled a graph, and in which mode it was told to.

    Graphs alone say nothing: some optimizers (torchao's) and attentions (flex) compile themselves.
    """
    if not observed.graphs or backend_of(observed.trainer) == "no":
        return "none"
    plugin = getattr(observed.trainer.accelerator.state, "dynamo_plugin", None)
    mode = getattr(plugin, "mode", None) or getattr(observed.trainer.args, MODE, None)
    return str(mode or "default").replace("-", "_")


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == "none":
        return None
    if ON not in environment.training_argument_fields:
        return f"this transformers' TrainingArguments has no field {ON}"
    if reason := environment.compile_backends.get("inductor", "torch offers no inductor here"):
        return reason
    if value == "reduce_overhead" and environment.is_cpu:
        return "it saves a GPU's launches by CUDA graphs: on a CPU it is the same as default"
    return None


LEVER = Lever(
    name="compile",
    values=("none", *MODES),
    changes=frozenset({"speed", "memory"}),
    summary="Fuses the model's operations into kernels of its own: faster steps, once the compiling has paid.",
    read=one_of("none", *MODES),
    own=_own,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    seconds=lambda value: EXPECTED_S.get(str(value), 0.0),
    traced=False,
)
