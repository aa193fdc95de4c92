"""Availability of Liger's kernels on this device and for this type of model."""

import importlib.util
import inspect
from typing import Any

from autotune.space.settings.liger import LOSS, NAMES


def why_not_here(on_cpu: bool) -> str | None:
    """Reason why the device or the installation cannot run them; or None."""
    if on_cpu:
        return "its kernels are Triton's, for GPUs"
    for name, package in (("liger_kernel", "liger-kernel"), ("triton", "triton")):
        if importlib.util.find_spec(name) is None:
            return f"not installed: pip install {package}"
    return None


def made_for(config: Any) -> dict[str, str | None]:
    """Value of the setting -> None if Liger's table has such kernels for this type of model, else the reason."""
    if why_not_here(on_cpu=False):
        return dict.fromkeys(NAMES[1:], "liger-kernel cannot be asked whether it knows this model: it is not installed")
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as TABLE
    except Exception as error:  # whatever a foreign package raises when it is imported
        return dict.fromkeys(NAMES[1:], f"liger-kernel cannot be imported: {type(error).__name__}: {error}"[:200])
    kind = str(getattr(config, "model_type", ""))
    if kind not in TABLE:
        return dict.fromkeys(NAMES[1:], f"it has no kernels for models of type {kind}")
    has_loss = LOSS in inspect.signature(TABLE[kind]).parameters
    return {"kernels": None, "kernels_and_loss": None if has_loss else f"it has no such loss for models of type {kind}"}
