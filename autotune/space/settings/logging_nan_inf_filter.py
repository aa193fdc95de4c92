"""Filter of the logged loss: whether the Trainer looks at each micro-step's loss before it continues."""

from autotune.space.settings.rules import needs_gpu
from autotune.space.settings.setting import NO_MEMORY, field_setting

SETTING = field_setting(
    name="logging_nan_inf_filter",
    field="logging_nan_inf_filter",
    values=(True, False),
    default=True,
    costs=NO_MEMORY,
    summary="Off, the host need not wait for the device in every micro-step; losses that are NaN are then logged as such.",
    unavailable=needs_gpu("a CPU has no device that it would wait for", usual=True),
)
