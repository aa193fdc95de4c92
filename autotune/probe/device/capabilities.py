"""Capabilities of the device with the installed libraries."""

import ctypes.util
import dataclasses
import inspect
import os
import platform
import subprocess
from datetime import date
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments
from transformers.training_args import OptimizerNames

from autotune.core import Environment, InvalidRequest
from autotune.core.environment import installed_versions
from autotune.core.version import __version__
from autotune.probe.device import compile as compiling
from autotune.probe.device import tryout
from autotune.probe.device.machine import cpu_name, machine_memory
from autotune.probe.device.nvml import used_bytes
from autotune.probe.order import Order
from autotune.space.settings.checkpointing import OPTIONS
from autotune.space.settings.optimizer import ORDINARY
from autotune.space.variables import PRELOAD, READ
from autotune.workload.model import liger

FROM_PARENT = ("device_count", "device_uuids", "driver", "topology", "others")
"""Fields of the environment that the parent has read from NVML."""

PRELOADED = {"jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc_minimal", "tcmalloc")}
"""Library -> names of its files, the leanest first."""


def read(order: Order) -> Environment:
    """The environment of the device in `order.request`; runs in a child, as it wakes the device.

    `optimizers`: to try beyond the ordinary ones, or "every" of transformers (compiling torchao's takes half a minute).
    """
    device, uuid = str(order.request["device"]), order.request.get("device_uuid")
    kind = "cpu" if device == "cpu" else "cuda"  # the only card that this process sees
    facts = _cpu_facts() if kind == "cpu" else _cuda_facts(order)
    requested = order.request.get("optimizers", ())
    names = [name.value for name in OptimizerNames] if requested == "every" else requested
    optimizers, optimizer_bytes = tryout.optimizers(list(dict.fromkeys([*ORDINARY, *names])), kind)
    return Environment(
        device=device,
        device_uuid=uuid,
        cpu_count=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        versions=installed_versions(),
        autotune_version=__version__,
        checked_on=date.today().isoformat(),
        training_argument_fields=tuple(field.name for field in dataclasses.fields(TrainingArguments) if field.init),
        training_argument_defaults=_defaults(),
        checkpointing_options=_checkpointing_options(),
        precisions=tryout.precisions(kind),
        optimizers=optimizers,
        optimizer_bytes=optimizer_bytes,
        libraries=_libraries(),
        compile_backends=compiling.backends(on_cpu=kind == "cpu"),
        liger=liger.why_not_here(on_cpu=kind == "cpu"),
        variables={name: os.environ[name] for name in READ if os.environ.get(name)},
        quantizations=tryout.quantizations(kind),
        host_free_bytes=machine_memory()[1],
        **facts,
    )


def _defaults() -> dict[str, Any]:
    """Defaults of TrainingArguments that JSON can hold, enumerations by their value."""
    fields = dataclasses.fields(TrainingArguments)
    defaults = {field.name: getattr(field.default, "value", field.default) for field in fields}
    return {
        name: value for name, value in defaults.items() if value is None or isinstance(value, (bool, int, float, str))
    }


def _checkpointing_options() -> tuple[str, ...]:
    """Options that this transformers' models take."""
    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", PreTrainedModel.gradient_checkpointing_enable)
    return tuple(name for name in OPTIONS if name in inspect.signature(enable).parameters)


def _libraries() -> dict[str, str]:
    """Library that a process can be started with -> its name for the loader; and glibc if it is the C library."""
    libraries = {"glibc": "libc.so.6"} if platform.libc_ver()[0] == "glibc" else {}
    for name, files in PRELOADED.items():
        library = next(filter(None, map(ctypes.util.find_library, files)), None)
        if library is not None:
            # The loader reports on stderr what it cannot load, and continues without.
            result = subprocess.run(["/bin/true"], env={PRELOAD: library}, capture_output=True, check=False)
            if result.returncode == 0 and not result.stderr:
                libraries[name] = library
    return libraries


def _cpu_facts() -> dict[str, Any]:
    total, free = machine_memory()
    return {
        "device_name": cpu_name(),
        "total_memory_bytes": total,
        "free_memory_bytes": free,
        "context_source": "none on a CPU",
    }


def _cuda_facts(order: Order) -> dict[str, Any]:
    """Facts of a GPU; its memory in use is read before and after it wakes up: the difference is each process's context."""
    used_before = used_bytes(order.request.get("device_uuid"))
    _wake_cuda()
    free, total = torch.cuda.mem_get_info()
    used_after = used_bytes(order.request.get("device_uuid"))
    context = 0
    if used_before is not None and used_after is not None:
        context = max(0, used_after - used_before - torch.cuda.memory_reserved())
    properties = torch.cuda.get_device_properties(0)
    return {
        "device_name": properties.name,
        "total_memory_bytes": total,
        "free_memory_bytes": free + context,
        "compute_capability": (properties.major, properties.minor),
        "context_bytes": context,
        "context_source": "device total after minus before" if context else "not visible",
        **{name: order.request[name] for name in FROM_PARENT if name in order.request},
    }


def _wake_cuda() -> None:
    """Call cuBLAS, cuDNN and lazily loaded kernels, which then take memory outside torch's allocator as in any training.

    Raises InvalidRequest if torch cannot use the card.
    """
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidRequest(
            f"torch {torch.__version__} cannot use the GPU: {line}.",
            "Use --device=cpu, or install a torch that fits the driver.",
        ) from error
    layer = torch.nn.Linear(256, 256, device="cuda")
    convolution = torch.nn.Conv2d(3, 8, 3, device="cuda")
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    for dtype in (torch.float32, torch.float16):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            out = (
                layer(torch.randn(64, 256, device="cuda")).sum()
                + convolution(torch.randn(2, 3, 16, 16, device="cuda")).sum()
            )
        out.backward()
    optimizer.step()
    heads = torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum().backward()
    torch.cuda.synchronize()
    del layer, convolution, optimizer, out, heads
    torch.cuda.empty_cache()
