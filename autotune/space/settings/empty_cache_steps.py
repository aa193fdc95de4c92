"""Emptying the cache: the device's allocator gives back unused memory after so many steps."""

from autotune.core import Environment, Value
from autotune.space.settings.setting import Context, Effect, Observed, Setting, whole_number

FIELD = "torch_empty_cache_steps"

MOST = 1000
"""A probe trains for at least this number of steps (`period`)."""

_read = whole_number(1, MOST)


def _from_user(context: Context) -> Value:
    steps = context.arguments.get(FIELD)
    return "none" if steps is None else _read(steps)


def _apply(value: Value, environment: Environment) -> Effect:
    if value == "none":
        return Effect(contradicts=(FIELD,), defaults={FIELD: None})
    return Effect({FIELD: value})


def _read_back(observed: Observed) -> Value:
    steps = getattr(observed.trainer.args, FIELD, None)
    return "none" if steps is None else int(steps)


def _unavailable(value: Value, context: Context) -> str | None:
    if value != "none" and context.environment.is_cpu:
        return "a CPU has no cache of a device to empty"
    if value != "none" and FIELD not in context.environment.training_argument_fields:
        return f"this transformers' TrainingArguments has no field {FIELD}"
    return None


SETTING = Setting(
    name="empty_cache_steps",
    argument=FIELD,
    values=("none", 1, 4, 16),
    summary="Gives cached device memory back every so many steps, against fragments.",
    read=lambda text: "none" if str(text).strip().lower() == "none" else _read(text),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    traced=False,
    period=lambda value: 1 if value == "none" else int(value),
    of_process=True,
)
