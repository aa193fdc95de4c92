"""FSDP: ranks keep a part each of weights, gradients and the optimizer's state, instead of a copy each."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import RANKS, Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Change, Effect, Observed, Setting, one_of

VALUES = ("none", "full_shard", "shard_grad_op")


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """As transformers reads it: true, or one of the older words, the sharding itself in `fsdp_config`.

    A `hybrid_shard` copies between machines, and on one is a full_shard.
    """
    asked = base.get("fsdp")
    if not asked:
        return "none"
    words = asked.split() if isinstance(asked, str) else [str(getattr(one, "value", one)) for one in _several(asked)]
    if named := [word for word in words if word in VALUES]:
        return named[0]
    reshards = (base.get("fsdp_config") or {}).get("reshard_after_forward", True)
    return "full_shard" if str(reshards).lower() in ("true", "full_shard") else "shard_grad_op"


def _several(asked: Any) -> list[Any]:
    return list(asked) if isinstance(asked, (list, tuple)) else []


def _apply(value: Value, environment: Environment) -> Effect:
    """Version 2 of FSDP: what shards is said by whether weights are gathered anew for the backward pass."""
    if value == "none":
        return Effect({"fsdp": ""}, contradicts=("fsdp_config",))
    reshards = value != "shard_grad_op"
    return Effect({"fsdp": True, "fsdp_config": {"version": 2, "reshard_after_forward": reshards}})


def _read_back(observed: Observed) -> str:
    model = getattr(observed.trainer, "model_wrapped", None) or observed.trainer.model
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if not kinds & {"FSDPModule", "FullyShardedDataParallel"}:
        return "none"
    plugin = observed.trainer.accelerator.state.fsdp_plugin
    reshards = getattr(plugin, "reshard_after_forward", True)
    return "full_shard" if str(reshards).rpartition(".")[2].lower() in ("true", "full_shard") else "shard_grad_op"


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == "none":
        return None
    if environment.is_cpu:
        return "shards the memory of several GPUs; ranks on a CPU share one memory"
    if environment.device_count < 2:
        return "shards over several GPUs, and one is visible"
    return None


def _change(value: Value, environment: Environment, workload: Workload) -> Change:
    """What two ranks save, the fewest there are: half of the gradients and, where they are not kept whole, of the weights
    (Zhao et al., PyTorch FSDP, 2023); and DistributedDataParallel's buckets. Of the optimizer's state nothing is said."""
    if value == "none":
        return Change()
    weights = workload.parameter_bytes if value != "shard_grad_op" else 0
    return Change(peak_bytes=-workload.gradient_bytes - (workload.gradient_bytes + weights) / 2)


_HUNGER = {"none": 2, "shard_grad_op": 1, "full_shard": 0}

SETTING = Setting(
    name="fsdp",
    values=VALUES,
    changes=frozenset({"speed", "memory"}),
    summary="Shards weights, gradients and optimizer state over the ranks: memory for a larger micro-batch, paid in traffic.",
    read=one_of(*VALUES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    needs_at_least_as_much=lambda one, other: one == other or _HUNGER[str(one)] > _HUNGER[str(other)],
    active_if=(RANKS, lambda ranks: int(ranks) > 1),
    change=_change,
)
