"""The backend of compiling: what turns captured graphs into kernels."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.compile import BACKEND, BLOCKS, DEFAULT, OVERWRITTEN, backend_of
from autotune.space.settings.setting import ACCUMULATION, Effect, Observed, Setting, one_of

NAMES = ("inductor", "cudagraphs", "onnxrt", "openxla", "tvm", "aot_eager")


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    return one_of(*NAMES)(base.get(BACKEND) or "inductor")


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({BACKEND: value})


def _read_back(observed: Observed) -> str | None:
    """None where nothing is compiled, or in a mode, which is inductor's own."""
    backend = backend_of(observed.trainer)
    if not observed.graphs or backend in ("", "no"):
        return None
    mode = getattr(observed.trainer.accelerator.state.dynamo_plugin, "mode", None)
    return backend if mode in (None, "default") else None


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == "inductor":
        return None  # where it cannot be used nothing is compiled at all: `compile` says so
    return environment.compile_backends.get(str(value), "this torch offers no such backend")


SETTING = Setting(
    name="compile_backend",
    values=NAMES,
    changes=frozenset({"speed", "memory"}),
    summary="What makes kernels of the compiled graphs: inductor writes Triton on GPUs and C++ on CPUs.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    forbidden={ACCUMULATION: lambda value, steps: OVERWRITTEN if value == "cudagraphs" and int(steps) > 1 else None},
    active_if=("compile", lambda value: value in (DEFAULT, BLOCKS)),
    traced=False,
)
