"""Pinned memory: page-locked host batches that a GPU copies directly."""

from autotune.space.settings.rules import needs_gpu
from autotune.space.settings.setting import NO_MEMORY, Context, field_setting, yes_or_no

FIELD = "dataloader_pin_memory"


def _from_user(context: Context) -> bool:
    """The user's value; off on a CPU, where the Trainer forces it off whatever the arguments say."""
    return yes_or_no(context.arguments.get(FIELD, True)) and not context.environment.is_cpu


SETTING = field_setting(
    name="pin_memory",
    field=FIELD,
    values=(True, False),
    default=True,
    costs=NO_MEMORY,
    summary="Page-locked host memory makes copies to a GPU faster.",
    from_user=_from_user,
    read_back=lambda observed: bool(observed.loader.pin_memory),
    unavailable=needs_gpu("the Trainer forces pinned memory off on a CPU: there is no device to copy to"),
)
