"""Rules: why a value of a setting cannot be used here, None if it can."""

from collections.abc import Callable, Mapping

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind, excluded
from autotune.space.settings.setting import Context
from autotune.space.variables import without_native_allocator

Rule = Callable[[Value, Context], Exclusion | None]


def first_of(*rules: Rule) -> Rule:
    """The first reason of these rules; a value that is off (`none`, false) is always available."""
    return lambda value, context: (
        None if _is_off(value) else next(filter(None, (rule(value, context) for rule in rules)), None)
    )


def _is_off(value: Value) -> bool:
    return value is False or value == "none"


def needs_gpu(reason: str, usual: Value | None = None) -> Rule:
    """Unavailable on a CPU for this reason, unless the value is off. usual: the value that needs none, instead."""
    exclusion = Exclusion(ExclusionKind.DEVICE, detail=reason)
    return lambda value, context: (
        exclusion if context.environment.is_cpu and not (_is_off(value) if usual is None else value == usual) else None
    )


def needs_package(name: str) -> Rule:
    """Unavailable without this package."""
    exclusion = Exclusion(ExclusionKind.PACKAGE, detail=name)
    return lambda value, context: None if name in context.environment.versions else exclusion


def needs_field(name: str) -> Rule:
    """Unavailable if `TrainingArguments` has no such field."""
    exclusion = Exclusion(ExclusionKind.FIELD, detail=name)
    return lambda value, context: None if name in context.environment.training_argument_fields else exclusion


def needs_native_allocator(value: Value, context: Context) -> Exclusion | None:
    """Unavailable if the user's variable chooses CUDA's allocator instead of torch's."""
    return excluded(ExclusionKind.VARIABLES, without_native_allocator(context.environment.variables))


def in_host_memory(processes: int, each_bytes: int, context: Context) -> Exclusion | None:
    """Unavailable if this number of processes with these bytes each need more of the host's memory than is free."""
    free, needed = context.environment.host_free_bytes, processes * each_bytes
    if free is None or needed <= free:
        return None
    numbers = {"processes": processes, "each_bytes": each_bytes, "needed_bytes": needed, "free_bytes": free}
    return Exclusion(ExclusionKind.HOST_MEMORY, numbers)


def not_combined(
    reason: str, is_forbidden: Callable[[Value, Value], bool]
) -> Callable[[Value, Value], Exclusion | None]:
    """A rule of `Setting.forbidden`: these values of two settings cannot be combined, for this reason."""
    exclusion = Exclusion(ExclusionKind.COMBINATION, detail=reason)
    return lambda value, other: exclusion if is_forbidden(value, other) else None


def collated(name: str, usual: Value | None = None) -> Rule:
    """Unavailable for the reason in the workload's table of ways to make batches. usual: the value that needs none."""

    def unavailable(value: Value, context: Context) -> Exclusion | None:
        reason = None if value == usual else context.workload.collating.get(name, "its batches are not known")
        return excluded(ExclusionKind.DATA, reason)

    return unavailable


def tried_on_device(table: str) -> Rule:
    """Unavailable for the reason in the environment's table of that name (`precisions`, `optimizers`)."""

    def unavailable(value: Value, context: Context) -> Exclusion | None:
        reasons: Mapping[str, str | None] = getattr(context.environment, table)
        reason = reasons.get(str(value), f"{value} was not tried on this device")
        return excluded(ExclusionKind.TRIED, reason)

    return unavailable


def has_tf32(environment: Environment) -> bool:
    """True if the device can run float32 products in TF32."""
    return environment.precisions.get("tf32", "unknown") is None
