"""Fields that a probe adds to the training arguments of its configuration; imports no torch."""

from typing import Any

from autotune.probe.order import TrainingOrder
from autotune.space.settings.quantization import FIELD as FOUR_BITS

# Added by a probe to the arguments that it recommends; none changes the speed of a step. No saving, evaluating, reporting or
# resuming.
PROBE_FIELDS: dict[str, Any] = {
    "save_strategy": "no",
    "eval_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "push_to_hub": False,
    "resume_from_checkpoint": None,
    "load_best_model_at_end": False,
    "eval_on_start": False,
    "auto_find_batch_size": False,
    "skip_memory_metrics": True,
    "enable_jit_checkpoint": False,
}
DEFAULT_SEED = 42
"""`TrainingArguments.seed` if nobody sets it."""

PLATEAU_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")
"""Learning-rate schedules for which arguments with evaluation are needed: those of a probe get them once they are made."""


def probe_fields(order: TrainingOrder) -> dict[str, Any]:
    """The configuration's training arguments with `PROBE_FIELDS`, as far as this transformers has them."""
    fields = dict(order.training_arguments)
    if str(getattr(fields.get("lr_scheduler_type"), "value", fields.get("lr_scheduler_type"))) in PLATEAU_SCHEDULERS:
        fields["lr_scheduler_type"] = "constant"
    if is_sharded(order):
        fields["fsdp_config"] = {**(fields.get("fsdp_config") or {}), "cpu_ram_efficient_loading": True}
    names = order.environment.training_argument_fields
    return fields | {name: value for name, value in PROBE_FIELDS.items() if name in names}


def is_sharded(order: TrainingOrder) -> bool:
    """True if FSDP shards a model that the probe builds: rank 0 has its weights, and gives the other ranks their shards.

    Weights in four bits are in no shard, and a model of the user's own is built by each rank.
    """
    own, four_bits = order.workload.user_objects, order.model_arguments.get(FOUR_BITS)
    return bool(order.training_arguments.get("fsdp")) and not own and not four_bits


def round_fields(order: TrainingOrder) -> dict[str, Any]:
    """The training arguments that a confirmation round has of its own, the same for every trial; none for a probe.

    Each round draws the samples in another order: rounds on the same few samples would agree with each other, and not with
    the rest of the data.
    """
    return {"data_seed": data_seed(order, order.confirmation)} if order.confirmation else {}


def data_seed(order: TrainingOrder, round_number: int) -> int:
    """The seed of the samples' order in this round, the same for all that run in it."""
    fields = order.training_arguments
    return int(fields.get("data_seed", fields.get("seed", DEFAULT_SEED)) or DEFAULT_SEED) + round_number
