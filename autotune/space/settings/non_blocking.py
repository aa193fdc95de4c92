"""Non-blocking copies: batches move to the GPU while the training process continues."""

from collections.abc import Mapping

from autotune.space.settings.rules import needs_gpu
from autotune.space.settings.setting import NO_MEMORY, Context, Effect, Observed, Setting, yes_or_no

FIELD = "accelerator_config"


def _from_user(context: Context) -> bool:
    """The field may also name a file, whose content is not read here; the Trainer's own default is no."""
    config = context.arguments.get(FIELD)
    return yes_or_no(config.get("non_blocking", False)) if isinstance(config, Mapping) else False


def _read_back(observed: Observed) -> bool | None:
    config = getattr(observed.trainer.accelerator, "dataloader_config", None)
    return None if config is None else bool(config.non_blocking)


SETTING = Setting(
    name="non_blocking",
    values=(False, True),
    costs=NO_MEMORY,
    summary="Copies of batches from page-locked memory run beside the compute.",
    from_user=_from_user,
    apply=lambda value, environment: Effect({FIELD: {"non_blocking": value}}),
    read_back=_read_back,
    unavailable=needs_gpu("on a CPU nothing is copied to a device"),
    active_if=("pin_memory", bool),
)
