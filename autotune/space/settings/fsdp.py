"""FSDP: each rank keeps a part of weights, gradients and the optimizer's state instead of a copy."""

from collections.abc import Mapping

from autotune.core.configuration import RANKS, Value
from autotune.core.environment import Environment
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import first_of, in_host_memory, needs_gpu
from autotune.space.settings.setting import Context, Costs, Effect, Observed, Setting

VALUES = ("none", "shard_grad_op", "full_shard")
"""Values from the most memory to the least."""

SINGLE = Exclusion(ExclusionKind.DEVICE, detail="shards over several GPUs, and one is visible")


def _from_user(context: Context) -> str:
    """Value as transformers reads it: true, or one of the older words, the sharding itself in `fsdp_config`.

    A `hybrid_shard` copies between machines, and on one is a full_shard. The config may also name a file, whose content is not
    read here; the Trainer's own default is a full_shard.
    """
    option = context.arguments.get("fsdp")
    if not option:
        return "none"
    words = option.split() if isinstance(option, str) else option if isinstance(option, (list, tuple)) else ()
    for word in words:
        if (named := str(getattr(word, "value", word))) in VALUES:
            return named
    config = context.arguments.get("fsdp_config")
    return _sharding(config.get("reshard_after_forward", True) if isinstance(config, Mapping) else True)


def _sharding(reshards: object) -> str:
    """Value of `reshard_after_forward`, in any of its spellings."""
    return "full_shard" if str(reshards).rpartition(".")[2].lower() in ("true", "full_shard") else "shard_grad_op"


def _apply(value: Value, environment: Environment) -> Effect:
    """Version 2 of FSDP, where `reshard_after_forward` decides what is sharded."""
    if value == "none":
        return Effect({"fsdp": ""}, contradicts=("fsdp_config",))
    return Effect({"fsdp": True, "fsdp_config": {"version": 2, "reshard_after_forward": value != "shard_grad_op"}})


def _read_back(observed: Observed) -> str:
    model = getattr(observed.trainer, "model_wrapped", None) or observed.trainer.model
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if not kinds & {"FSDPModule", "FullyShardedDataParallel"}:
        return "none"
    return _sharding(getattr(observed.trainer.accelerator.state.fsdp_plugin, "reshard_after_forward", True))


def _unshardable(value: Value, context: Context) -> Exclusion | None:
    """Exclusion by the host's memory: FSDP shards a model that one rank has whole there."""
    return in_host_memory(1, context.workload.parameter_bytes * context.weight_bytes // 4, context)


SETTING = Setting(
    name="fsdp",
    values=VALUES,
    summary="Shards weights, gradients and optimizer state over the ranks: memory for a larger micro-batch, paid in traffic.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(
        needs_gpu("shards the memory of several GPUs; ranks on a CPU share one memory"),
        lambda value, context: SINGLE if context.environment.device_count < 2 else None,
        _unshardable,
    ),
    active_if=(RANKS, lambda ranks: int(ranks) > 1),
    costs=Costs(lambda value, other: VALUES.index(str(value)) <= VALUES.index(str(other))),
)
