"""Rules: why a value of a setting cannot be used here, None if it can."""

from collections.abc import Callable, Mapping

from autotune.core.configuration import Value
from autotune.space.settings.setting import Context

Rule = Callable[[Value, Context], str | None]


def first_of(*rules: Rule) -> Rule:
    """The first reason of these rules; a value that is off (`none`, false) is always available."""
    return lambda value, context: (
        None if _is_off(value) else next(filter(None, (rule(value, context) for rule in rules)), None)
    )


def _is_off(value: Value) -> bool:
    return value is False or value == "none"


def needs_gpu(reason: str) -> Rule:
    """Unavailable on a CPU for this reason, unless the value is off."""
    return lambda value, context: reason if context.environment.is_cpu and not _is_off(value) else None


def needs_package(name: str) -> Rule:
    """Unavailable without this package."""
    return lambda value, context: None if name in context.environment.versions else f"needs `pip install {name}`"


def needs_field(name: str) -> Rule:
    """Unavailable if `TrainingArguments` has no such field."""
    reason = f"this transformers' TrainingArguments has no field {name}"
    return lambda value, context: None if name in context.environment.training_argument_fields else reason


def tried_on_device(table: str) -> Rule:
    """Unavailable for the reason in the environment's table of that name (`precisions`, `optimizers`)."""

    def unavailable(value: Value, context: Context) -> str | None:
        reasons: Mapping[str, str | None] = getattr(context.environment, table)
        return reasons.get(str(value), f"{value} was not tried on this device")

    return unavailable
