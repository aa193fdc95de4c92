"""Expandable segments: the device's allocator grows its blocks in place instead of taking new ones."""

from autotune.core import Environment, Value
from autotune.space.settings.rules import first_of, needs_gpu, needs_native_allocator
from autotune.space.settings.setting import Context, Costs, Effect, Observed, Setting
from autotune.space.variables import allocator_settings, allocator_variable, without_native_allocator

OPTION = "expandable_segments"


def _from_user(context: Context) -> bool:
    """Value in the user's environment variable: no field of TrainingArguments has it."""
    environment = context.environment
    if environment.is_cpu or without_native_allocator(environment.variables):
        return False
    return allocator_settings(environment.variables).get(OPTION, "").lower() == "true"


def _apply(value: Value, environment: Environment) -> Effect:
    if environment.is_cpu:
        return Effect()
    return Effect(environment={allocator_variable(environment.variables): f"{OPTION}:{value}"})


def _read_back(observed: Observed) -> bool | None:
    expandable = observed.allocator.get(OPTION)
    return None if expandable is None else bool(expandable)


SETTING = Setting(
    name="expandable_segments",
    values=(False, True),
    summary="The device's allocator grows blocks in place: less memory is lost to fragments if batches differ in length.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(
        needs_gpu("it is an option of a GPU's allocator"),
        needs_native_allocator,
    ),
    costs=Costs(traced=False, of_process=True),
)
