"""The answer for accelerate: the file that `accelerate launch --config_file` reads."""

from typing import Any

from autotune.report.exports.answer import Answer, joined
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.space.settings.compile import REGIONAL

FSDP_KEYS = (
    *("version", "reshard_after_forward", "min_num_params", "auto_wrap_policy", "transformer_layer_cls_to_wrap"),
    *("state_dict_type", "cpu_ram_efficient_loading", "activation_checkpointing", "forward_prefetch"),
    *("backward_prefetch", "use_orig_params", "sync_module_states"),
)
"""Keys of `TrainingArguments.fsdp_config` that `accelerate launch` knows as --fsdp_...; cpu_offload is its
--fsdp_offload_params."""


def accelerate_yaml(answer: Answer) -> str:
    """Processes, device, precision, compilation, and how ranks share the model."""
    kind, variables = distributed_type(answer), answer.setup.variables
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        "main_training_function": "train",
        "machine_rank": 0,
        "num_machines": 1,
        "num_processes": answer.ranks,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": answer.is_cpu,
    }
    if kind != "DEEPSPEED":  # its own file holds the precision, and accelerate refuses to read it twice
        values["mixed_precision"] = answer.mixed_precision
    values |= _compilation(answer) | _sharding(answer, kind)
    head = [
        start_line(answer),
        f"No counterpart here, set in accelerate_loop.py: micro-batch {answer.micro_batch_size}, accumulation "
        f"{answer.accumulation}, optimizer {answer.fields.get('optim', 'adamw_torch_fused')}, checkpointing "
        f"{'on' if answer.checkpointing else 'off'}, attention, kernels, data loader.",
    ]
    missing = {
        f"fsdp_config {name}": value
        for name, value in (answer.fsdp_config if kind == "FSDP" else {}).items()
        if name not in (*FSDP_KEYS, "cpu_offload") and not name.startswith("xla")
    }
    notes = [f"set before the start: {name}={value}" for name, value in variables.items() if name != REGIONAL]
    if kind == "MULTI_CPU":
        notes.append("such a file starts several ranks on CPUs through MPI only (mpirun_config); hence torchrun above")
    if kind == "DEEPSPEED":
        notes.append(f"precision, sizes and clipping are in {answer.deepspeed_file}; start from its folder")
    return commented_yaml(head, values, missing, notes)


def distributed_type(answer: Answer) -> str:
    """accelerate's name for how ranks work together."""
    if answer.deepspeed_file:
        return "DEEPSPEED"
    if answer.fields.get("fsdp"):
        return "FSDP"
    if answer.ranks == 1:
        return "NO"
    return "MULTI_CPU" if answer.is_cpu else "MULTI_GPU"


def start_line(answer: Answer) -> str:
    """Command that starts the loop. A config file of accelerate starts ranks on CPUs through MPI only; torchrun needs nothing."""
    if distributed_type(answer) == "MULTI_CPU":
        precision = f"ACCELERATE_USE_CPU=true ACCELERATE_MIXED_PRECISION={answer.mixed_precision}"
        return f"{answer.environment} {precision} torchrun --nproc-per-node {answer.ranks} accelerate_loop.py"
    return f"{answer.environment} accelerate launch --config_file accelerate_config.yaml accelerate_loop.py"


def _compilation(answer: Answer) -> dict[str, Any]:
    fields = answer.fields
    if not any(fields.get(name) for name in ("torch_compile", "torch_compile_backend", "torch_compile_mode")):
        return {}
    return {
        "dynamo_config": {
            "dynamo_backend": str(fields.get("torch_compile_backend") or "inductor").upper(),
            "dynamo_mode": fields.get("torch_compile_mode") or "default",
            "dynamo_use_dynamic": False,
            "dynamo_use_fullgraph": False,
            "dynamo_use_regional_compilation": answer.setup.variables.get(REGIONAL) == "true",
        }
    }


def _sharding(answer: Answer, kind: str) -> dict[str, Any]:
    if kind == "DEEPSPEED":
        stage = ((answer.deepspeed or {}).get("zero_optimization") or {}).get("stage", 0)
        return {"deepspeed_config": {"deepspeed_config_file": answer.deepspeed_file, "zero3_init_flag": stage == 3}}
    if kind != "FSDP":
        return {}
    config = answer.fsdp_config
    fields = {f"fsdp_{name}": joined(config[name]) for name in FSDP_KEYS if name in config}
    return {"fsdp_config": {"fsdp_version": 2} | fields | {"fsdp_offload_params": bool(config.get("cpu_offload"))}}
