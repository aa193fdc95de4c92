"""Exclusions: why a value of a setting is never tried."""

from dataclasses import dataclass

from autotune.core.reason import Kind, Reason


class ExclusionKind(Kind):
    """Kind of reason why a value of a setting is never tried; the setting words it if the template is the detail alone."""

    DEVICE = "device", "{detail}"  # of no use on this device
    MODEL = "model", "{detail}"  # the model, or the user's own objects, cannot have it
    DATA = "data", "{detail}"  # of no use for this data
    LIBRARY = "library", "{detail}"  # a library lacks it
    TRIED = "tried", "{detail}"  # it failed, or was not tried, on this device
    VARIABLES = "variables", "{detail}"  # the user's own environment variables are against it
    COMBINATION = "combination", "{detail}"  # another setting's value is against it
    USER_CODE = "user_code", "your code makes model and Trainer, and no training argument says {detail}"
    FIELD = "field", "this transformers' TrainingArguments has no field {detail}"
    PACKAGE = "package", "needs `pip install {detail}`"
    CAPABILITY = "capability", "needs compute capability {capability:.1f}"
    CORES = "cores", "more {detail} than the {cores:CPU core} this process may use"
    GPUS = "gpus", "more ranks than the {gpus:visible GPU}"
    DEVICES = "devices", "more ranks than the {devices:device} of this search"
    FITS = "fits", "the {gigabytes:.3g} GB of weights, gradients and states fit the {gpu_gigabytes:.3g} GB of the GPU"
    HOST_MEMORY = (
        "host_memory",
        "needs {needed_bytes:bytes} of host memory ({processes:rank} x {each_bytes:bytes}), and {free_bytes:bytes} are free",
    )
    LENGTH = "length", "the longest samples would have more than the {tokens:.0f} tokens asked for"
    NUMERICS = "numerics", "learns differently from {detail}, which --keep-numerics keeps"
    KEPT = "kept", "{detail}"  # the user's own training showed that it stays
    STEPS = (
        "steps",
        "would train {steps:optimizer step} instead of {own:.0f} (dataloader_drop_last): set max_steps={own:.0f} to search it",
    )
    NOT_EXACT = "not_exact", "does not divide the global batch of {global_batch_size:.0f}{detail}"


@dataclass(frozen=True)
class Exclusion(Reason):
    """Reason why a value of a setting is never tried."""

    kind: ExclusionKind


def excluded(kind: ExclusionKind, reason: str | None) -> Exclusion | None:
    """The exclusion for this reason; None without a reason."""
    return Exclusion(kind, detail=reason) if reason else None
