"""Emptying the cache: the device's allocator gives back unused memory after n steps."""

from autotune.space.settings.rules import first_of, needs_field, needs_gpu
from autotune.space.settings.setting import Costs, field_setting, whole_number

FIELD = "torch_empty_cache_steps"

MOST = 1000
"""A probe trains for at least this number of steps (`period`)."""

_read = whole_number(1, MOST)

SETTING = field_setting(
    name="empty_cache_steps",
    field=FIELD,
    values=("none", 1, 4, 16),
    default="none",
    summary="Gives cached device memory back every so many steps, against fragments.",
    read=lambda text: "none" if str(text).strip().lower() == "none" else _read(text),
    unavailable=first_of(needs_gpu("a CPU has no cache of a device to empty"), needs_field(FIELD)),
    costs=Costs(traced=False, of_process=True, period=lambda value: 1 if value == "none" else int(value)),
)
