"""Compiling: torch turns the model into fused kernels in its first steps, which makes its probes long."""

from typing import Any

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import first_of, has_tf32, needs_field, needs_native_allocator, not_combined
from autotune.space.settings.setting import ACCUMULATION, Context, Costs, Effect, Observed, Setting, one_of

FIELDS = ON, MODE, BACKEND = "torch_compile", "torch_compile_mode", "torch_compile_backend"

REGIONAL = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"
"""Variable by which accelerate compiles each repeated block by itself (`TorchDynamoPlugin`): the Trainer has no field for it."""

DEFAULT, BLOCKS, NONE = "default", "regional", "none"

MODES = {
    "reduce_overhead": "reduce-overhead",
    "max_autotune": "max-autotune-no-cudagraphs",
    "max_autotune_graphs": "max-autotune",
}
"""Value -> inductor's mode (`torch._inductor.list_mode_options`). `max_autotune_graphs` is for those who set that mode
themselves: it is in no search space, because graphs and autotuning are two things."""

_VALUES = {mode: value for value, mode in MODES.items()}

GRAPHS = ("reduce_overhead", "max_autotune_graphs")
"""Values that record CUDA graphs."""

OVERWRITTEN = "a CUDA graph overwrites the gradients of the micro-step before, which accumulation must keep"
"""`torch/_inductor/cudagraph_trees.py`: "accessing gradient tensor output of CUDAGraphs that has been overwritten"."""

COMPILED = "OptimizedModule"
"""The class that torch.compile wraps a module in."""

VALUES = (NONE, BLOCKS, DEFAULT, *MODES)

EXPECTED_S = {BLOCKS: 20.0, DEFAULT: 60.0, **dict(zip(MODES, (75.0, 180.0, 195.0), strict=True))}
"""Seconds of compiling a model of some hundred million parameters: assumptions, of the order that people report. The first
probe of a value measures its own."""


def is_on(context: Context) -> bool:
    """True if the user's arguments compile; a mode or a backend implies it (`TrainingArguments.torch_compile_mode`)."""
    return any(context.arguments.get(field) for field in FIELDS)


def _from_user(context: Context) -> str:
    if not is_on(context):
        return NONE
    mode = str(context.arguments.get(MODE) or DEFAULT)
    return _VALUES.get(mode) or one_of(DEFAULT, *MODES)(mode)


def _apply(value: Value, environment: Environment) -> Effect:
    """`tf32` is set because compiling switches it on for the whole process if the arguments leave it open."""
    if value == NONE:
        return Effect({ON: False}, contradicts=(MODE, BACKEND), defaults={MODE: None, BACKEND: None})
    if value in (DEFAULT, BLOCKS):
        variables = {REGIONAL: "true"} if value == BLOCKS else {}
        return Effect({ON: True}, environment=variables, contradicts=(MODE,), defaults={MODE: None, "tf32": False})
    # A mode is inductor's: no other backend takes it.
    fields = {ON: True, MODE: MODES[str(value)]}
    return Effect(fields, contradicts=(BACKEND,), defaults={BACKEND: "inductor", "tf32": False})


def backend_of(trainer: Any) -> str:
    """Backend with which accelerate compiles the trainer's model, as `inductor`.

    `no` if it compiles nothing, empty if it does not say.
    """
    plugin = getattr(getattr(trainer.accelerator, "state", None), "dynamo_plugin", None)
    backend = getattr(plugin, "backend", "")
    return str(getattr(backend, "value", backend)).lower()


def _read_back(observed: Observed) -> str:
    """Value that its effect shows: whether torch compiled a graph, of the whole model or of its blocks, and in which mode.

    Graphs alone say nothing: some optimizers (torchao's) and attentions (flex) compile themselves.
    """
    if not observed.graphs or backend_of(observed.trainer) == "no":
        return NONE
    plugin = getattr(observed.trainer.accelerator.state, "dynamo_plugin", None)
    mode = str(getattr(plugin, "mode", None) or getattr(observed.trainer.args, MODE, None) or DEFAULT)
    if mode == DEFAULT:
        return BLOCKS if _in_blocks(getattr(observed.trainer, "model_wrapped", None)) else DEFAULT
    return _VALUES.get(mode, mode)


def _in_blocks(model: Any) -> bool:
    """True if parts of the model are compiled and not the model itself."""
    kinds = [type(module).__name__ for module in model.modules()] if hasattr(model, "modules") else [""]
    return COMPILED in kinds[1:] and kinds[0] != COMPILED


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    environment = context.environment
    if reason := environment.compile_backends.get("inductor", "torch offers no inductor here"):
        return Exclusion(ExclusionKind.TRIED, detail=reason)
    if value == "reduce_overhead" and environment.is_cpu:
        text = "it saves a GPU's launches by CUDA graphs: on a CPU it is the same as default"
        return Exclusion(ExclusionKind.DEVICE, detail=text)
    if value in GRAPHS:  # `cudagraph_trees.py` asks it for the live blocks of a graph's pool
        return needs_native_allocator(value, context)
    return None


_forbidden_precision = not_combined(
    "accelerate compiles trainings in float32 with TF32 on: ask for precision tf32",
    lambda value, precision: value != NONE and precision == "fp32",
)
"""Accelerate lets float32 products run in TF32 if it compiles and casts nothing (`AcceleratorState.__init__`)."""


SETTING = Setting(
    name="compile",
    values=VALUES,
    summary="Fuses the model's operations into kernels of its own: faster steps, once the compiling has paid.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(needs_field(ON), _unavailable),
    forbidden={ACCUMULATION: not_combined(OVERWRITTEN, lambda value, steps: value in GRAPHS and int(steps) > 1)},
    forbidden_on=lambda environment: {"precision": _forbidden_precision} if has_tf32(environment) else {},
    costs=Costs(traced=False, seconds=lambda value: EXPECTED_S.get(str(value), 0.0)),
)
