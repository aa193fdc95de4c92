"""Persistent workers: data loader processes that stay alive between epochs."""

from autotune.space.settings.setting import NO_MEMORY, field_setting

SETTING = field_setting(
    name="persistent_workers",
    field="dataloader_persistent_workers",
    values=(False, True),
    default=False,
    costs=NO_MEMORY,
    summary="Workers that live on from epoch to epoch save their start if epochs are short; a probe sees one epoch only.",
    # Without workers there is nothing to persist.
    read_back=lambda observed: (
        bool(observed.loader.persistent_workers) if getattr(observed.loader, "num_workers", 0) else None
    ),
    active_if=("workers", bool),
)
