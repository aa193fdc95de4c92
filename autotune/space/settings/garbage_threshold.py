"""Garbage threshold: from which share of its limit on the device's allocator reclaims unused blocks."""

from typing import Any

from autotune.core import Environment, Value
from autotune.space.settings.setting import Context, Effect, Observed, Setting, none_or
from autotune.space.variables import allocator_settings, allocator_variable, without_native_allocator

OPTION, LIMIT = "garbage_collection_threshold", "per_process_memory_fraction"


def _share(text: Any) -> float:
    """A share strictly between 0 and 1, as the allocator wants it; raises ValueError."""
    try:
        share = float(str(text).strip())
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"{text!r} is no share between 0 and 1")
    return share


def _from_user(context: Context) -> Value:
    """As the user's own variable says: no field of TrainingArguments does."""
    environment = context.environment
    share = allocator_settings(environment.variables).get(OPTION)
    if share is None or environment.is_cpu or without_native_allocator(environment.variables):
        return "none"
    return _share(share)


def _apply(value: Value, environment: Environment) -> Effect:
    if value == "none":
        return Effect()
    return Effect(environment={allocator_variable(environment.variables): f"{OPTION}:{value}"})


def _read_back(observed: Observed) -> Value | None:
    share = observed.allocator.get(OPTION)
    if share is None:
        return None
    return "none" if share <= 0 else round(float(share), 6)  # it is kept in 32 bits


def _unavailable(value: Value, context: Context) -> str | None:
    """Torch reclaims only where a process is held to a fraction of the card (c10/cuda/CUDACachingAllocator.cpp, `malloc` and
    `setMemoryFraction`): probes always are, a training only where the user's own variable says so."""
    environment, own = context.environment, _from_user(context)
    variable = allocator_variable(environment.variables)
    if value == "none":
        return None if own == "none" else f"your {variable} sets it, and no value undoes that"
    if environment.is_cpu:
        return "it is an option of a GPU's allocator"
    if reason := without_native_allocator(environment.variables):
        return reason
    if value != own and not _limited(environment):
        return (
            f"it has an effect only where your {variable} sets a {LIMIT} below 1: in your training it would have none"
        )
    return None


def _limited(environment: Environment) -> bool:
    try:
        return float(allocator_settings(environment.variables).get(LIMIT, "1")) < 1
    except ValueError:
        return False


SETTING = Setting(
    name="garbage_threshold",
    values=("none", 0.6, 0.8),
    summary="Reclaims unused device memory before the limit is met, so that nothing has to be freed all at once.",
    read=none_or(_share),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    traced=False,
    of_process=True,
)
