"""Compile backend: what turns captured graphs into kernels."""

from autotune.core.configuration import Value
from autotune.space.settings.compile import BACKEND, BLOCKS, DEFAULT, OVERWRITTEN, backend_of
from autotune.space.settings.exclusion import Exclusion, ExclusionKind, excluded
from autotune.space.settings.rules import not_combined
from autotune.space.settings.setting import ACCUMULATION, Context, Costs, Observed, field_setting

NAMES = ("inductor", "cudagraphs", "onnxrt", "openxla", "tvm", "aot_eager")


def _read_back(observed: Observed) -> str | None:
    """The backend; None if nothing is compiled, or in a mode, which is inductor's own."""
    backend = backend_of(observed.trainer)
    if not observed.graphs or backend in ("", "no"):
        return None
    mode = getattr(observed.trainer.accelerator.state.dynamo_plugin, "mode", None)
    return backend if mode in (None, "default") else None


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    if value == "inductor":
        return None  # if it cannot be used nothing is compiled at all: `compile` says so
    reason = context.environment.compile_backends.get(str(value), "this torch offers no such backend")
    return excluded(ExclusionKind.TRIED, reason)


SETTING = field_setting(
    name="compile_backend",
    field=BACKEND,
    values=NAMES,
    default="inductor",
    summary="What makes kernels of the compiled graphs: inductor writes Triton on GPUs and C++ on CPUs.",
    read_back=_read_back,
    unavailable=_unavailable,
    forbidden={ACCUMULATION: not_combined(OVERWRITTEN, lambda value, steps: value == "cudagraphs" and int(steps) > 1)},
    active_if=("compile", lambda value: value in (DEFAULT, BLOCKS)),
    costs=Costs(traced=False),
)
