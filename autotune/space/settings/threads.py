"""Threads: how many compute one operation of a training on a CPU."""

from autotune.core.configuration import Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.setting import NO_MEMORY, Context, Effect, Setting, whole_number

VARIABLE = "OMP_NUM_THREADS"

MOST = 1024
"""Number above that of any machine's cores."""


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    environment = context.environment
    if int(value) > environment.cpu_count:
        return Exclusion(ExclusionKind.CORES, {"cores": environment.cpu_count}, "threads")
    if not environment.is_cpu and value != environment.threads:
        text = "the GPU computes: threads decide the speed of trainings on a CPU"
        return Exclusion(ExclusionKind.DEVICE, detail=text)
    return None


SETTING = Setting(
    name="threads",
    values=(1, 2, 4, 8, 16, 32),
    costs=NO_MEMORY,
    summary="Threads of one operation on a CPU: cores that only wait for memory help loader workers more.",
    read=whole_number(1, MOST),
    from_user=lambda context: context.environment.threads,  # torch's own choice
    apply=lambda value, environment: Effect(environment={VARIABLE: str(value)}),
    read_back=lambda observed: observed.threads,
    unavailable=_unavailable,
    ordered=True,
)
