"""Prefetch factor: batches that each data loader worker prepares ahead."""

from autotune.space.settings.setting import NO_MEMORY, field_setting, whole_number

MOST = 1024
"""Batches of one worker that the host's memory must hold at the same time."""

SETTING = field_setting(
    name="prefetch_factor",
    field="dataloader_prefetch_factor",
    values=(2, 4, 8),
    default=2,  # torch's own, if workers load and nobody says otherwise (`torch.utils.data.DataLoader`)
    costs=NO_MEMORY,
    summary="Batches that each worker prepares ahead: more of them even out slow samples and take the host's memory.",
    read=whole_number(1, MOST),
    read_back=lambda observed: getattr(observed.loader, "prefetch_factor", None),  # None if no worker loads
    ordered=True,
    active_if=("workers", bool),
)
