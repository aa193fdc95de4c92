"""What torch, transformers and bitsandbytes can really do on this device, found by doing it once."""

import contextlib
import ctypes.util
import dataclasses
import importlib.metadata
import inspect
import os
import platform
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, TrainingArguments
from transformers.training_args import OptimizerNames

from autotune.environment import Environment
from autotune.errors import InvalidRequest
from autotune.levers.checkpointing import OPTIONS
from autotune.levers.optimizer import ORDINARY
from autotune.levers.quantization import NAMES as QUANTIZATIONS
from autotune.probe import compiling, kernels
from autotune.probe.order import Order
from autotune.variables import PRELOAD, READ

Found = TypeVar("Found")

PRELOADED = {"jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc_minimal", "tcmalloc")}
"""Library -> the names of its files, the leanest first."""
FOUR_BITS = QUANTIZATIONS[1:]

VERSIONS = ("torch", "transformers", "accelerate", "datasets", "bitsandbytes", "peft", "deepspeed", "optuna")


FIRST_STEPS = 8
"""Steps in which an optimizer must change something: rectified Adam waits for its variance to settle (Liu et al., 2020)."""


def read(order: Order) -> Environment:
    """The environment of the device in `order.request`: device, uuid, and `optimizers` to try beyond the ordinary ones,
    or "every": all that transformers names (those of torchao are compiled, which takes half a minute).

    Runs in a child: it wakes the device.
    """
    device = str(order.request["device"])
    if uuid := order.request.get("device_uuid"):
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    facts = _cuda_facts(order) if device.startswith("cuda") else _cpu_facts()
    asked = order.request.get("optimizers", ())
    wanted = dict.fromkeys([*ORDINARY, *([one.value for one in OptimizerNames] if asked == "every" else asked)])
    optimizers, optimizer_bytes = _optimizers(list(wanted), device)
    return Environment(
        device=device,
        device_uuid=uuid,
        cpu_count=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        versions=_versions(),
        training_argument_fields=tuple(field.name for field in dataclasses.fields(TrainingArguments) if field.init),
        training_argument_defaults=_defaults(),
        checkpointing_options=_checkpointing_options(),
        precisions=_precisions(device),
        optimizers=optimizers,
        optimizer_bytes=optimizer_bytes,
        libraries=_libraries(),
        compile_backends=compiling.backends(on_cpu=device == "cpu"),
        liger=kernels.why_not_here(on_cpu=device == "cpu"),
        variables={name: os.environ[name] for name in READ if os.environ.get(name)},
        quantizations={name: _why_not(partial(_try_four_bits, name, device)) for name in FOUR_BITS},
        **facts,
    )


def _defaults() -> dict[str, Any]:
    """Defaults of TrainingArguments that JSON can hold, enumerations by their value."""
    known = {
        field.name: getattr(field.default, "value", field.default) for field in dataclasses.fields(TrainingArguments)
    }
    return {name: value for name, value in known.items() if value is None or isinstance(value, (bool, int, float, str))}


def _checkpointing_options() -> tuple[str, ...]:
    """Those that this transformers' models take, by the signature of what switches checkpointing on."""
    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", PreTrainedModel.gradient_checkpointing_enable)
    return tuple(name for name in OPTIONS if name in inspect.signature(enable).parameters)


def _versions() -> dict[str, str]:
    versions = {}
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions | {"python": platform.python_version()}


def _libraries() -> dict[str, str]:
    """Library that a process can be started with -> its name for the loader, each tried; and glibc where it is the C library."""
    found = {"glibc": "libc.so.6"} if platform.libc_ver()[0] == "glibc" else {}
    for name, files in PRELOADED.items():
        known = next(filter(None, map(ctypes.util.find_library, files)), None)
        if known is not None and _can_be_preloaded(known):
            found[name] = known
    return found


def _can_be_preloaded(library: str) -> bool:
    """The loader says on standard error what it cannot load, and goes on without."""
    tried = subprocess.run(["/bin/true"], env={PRELOAD: library}, capture_output=True, check=False)
    return tried.returncode == 0 and not tried.stderr


def _cpu_facts() -> dict[str, Any]:
    total, free = machine_memory()
    return {
        "device_name": _cpu_name(),
        "total_memory_bytes": total,
        "free_memory_bytes": free,
        "context_source": "none on a CPU",
    }


def machine_memory() -> tuple[int, int]:
    """(total, available) bytes of the machine, or of the control group where that is less."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((Path("/sys/fs/cgroup") / limit_file).read_text())
            used = int((Path("/sys/fs/cgroup") / used_file).read_text())
            total, free = min(total, limit), min(free, max(0, limit - used))
    return total, free


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


def _cuda_facts(order: Order) -> dict[str, Any]:
    """Read before and after the device wakes up: the difference is the context that every process pays."""
    used_before = _device_used(order.request.get("device_uuid"))
    _wake_cuda()
    free, total = torch.cuda.mem_get_info()
    used_after = _device_used(order.request.get("device_uuid"))
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
        "device_count": int(order.request.get("device_count", 1)),
        "device_uuids": tuple(order.request.get("device_uuids", ())),
        "driver": order.request.get("driver"),
        "topology": order.request.get("topology", ""),
        "others": tuple(order.request.get("others", ())),
    }


def _wake_cuda() -> None:
    """Do once what every training does, so that the libraries' own memory is there to be measured.

    cuBLAS, cuDNN and lazily loaded kernels take theirs at their first call, outside torch's allocator. Raises
    InvalidRequest where torch cannot use the card.
    """
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidRequest(
            f"torch {torch.__version__} cannot use the GPU: {said}.",
            "Use --device cpu, or install a torch that fits the driver.",
        ) from error
    layer = torch.nn.Linear(256, 256, device="cuda")
    convolution = torch.nn.Conv2d(3, 8, 3, device="cuda")
    optimizer = torch.optim.AdamW(layer.parameters())
    for dtype in (torch.float32, torch.float16):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            out = (
                layer(torch.randn(64, 256, device="cuda")).sum()
                + convolution(torch.randn(2, 3, 16, 16, device="cuda")).sum()
            )
        out.backward()
    optimizer.step()
    torch.cuda.synchronize()
    del layer, convolution, optimizer, out
    torch.cuda.empty_cache()


def _device_used(uuid: str | None) -> int | None:
    """Bytes in use on the card by anyone, through NVML; None where NVML does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except Exception:  # NVML's errors are one class a code; any of them means: unknown
        return None


def _precisions(device: str) -> dict[str, str | None]:
    """Value -> None where it works, else why not."""
    if device == "cpu":
        return {
            "fp32": None,
            "tf32": "TF32 is a format of NVIDIA GPUs from Ampere on",
            "fp16": "on a CPU the Trainer accepts fp16 and silently trains in fp32",
            "bf16": _why_not(lambda: _try_autocast("cpu", torch.bfloat16)),
            "bf16_weights": _why_not(lambda: _try_weights("cpu", torch.bfloat16)),
        }
    major, _ = torch.cuda.get_device_capability()
    old = f"compute capability {major}.x: bf16 and TF32 need 8.0 (Ampere)"
    return {
        "fp32": None,
        "tf32": None if major >= 8 else old,
        "fp16": _why_not(lambda: _try_autocast("cuda", torch.float16)),
        # torch.cuda.is_bf16_supported() also counts emulation, which is slower than float32.
        "bf16": _why_not(lambda: _try_autocast("cuda", torch.bfloat16)) if major >= 8 else old,
        "bf16_weights": _why_not(lambda: _try_weights("cuda", torch.bfloat16)) if major >= 8 else old,
    }


def _why_not(attempt: Callable[[], None]) -> str | None:
    """None where the attempt works, else one line of why it does not."""
    return _attempted(attempt)[1]


def _attempted(attempt: Callable[[], Found]) -> tuple[Found | None, str | None]:
    """(what the attempt brings, None), or (None, one line of why it does not work)."""
    try:
        return attempt(), None
    except Exception as error:  # whatever a library raises, the value cannot be used
        said = next(iter(str(error).strip().splitlines()), "no message")
        return None, f"{type(error).__name__}: {said}"[:200]


def _try_autocast(device: str, dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(64, 64).to(device)
    with torch.autocast(device, dtype=dtype):
        out = layer(torch.randn(8, 64, device=device))
    if out.dtype != dtype:
        raise RuntimeError(f"autocast to {dtype} gave {out.dtype}")
    out.float().sum().backward()


def _try_weights(device: str, dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(64, 64).to(device, dtype)
    layer(torch.randn(8, 64, device=device, dtype=dtype)).sum().backward()
    torch.optim.AdamW(layer.parameters()).step()


def _try_four_bits(name: str, device: str) -> None:
    """A gradient goes back through a frozen layer of packed weights, as below an adapter."""
    import bitsandbytes

    place = "cpu" if device == "cpu" else "cuda"
    weight = bitsandbytes.nn.Params4bit(torch.randn(128, 64), requires_grad=False, quant_type=name).to(place)
    layer = bitsandbytes.nn.Linear4bit(64, 128, bias=False, compute_dtype=torch.float32, quant_type=name, device="meta")
    layer.weight = weight
    given = torch.randn(8, 64, device=place, requires_grad=True)
    layer(given).square().sum().backward()
    if weight.numel() != 128 * 64 // 2 or given.grad is None or not given.grad.isfinite().all():
        raise RuntimeError("its weights were not packed, or no gradient came back")


def _optimizers(names: list[str], device: str) -> tuple[dict[str, str | None], dict[str, int]]:
    """(name -> None where it works, else why not; name -> bytes that its library took at its first step here)."""
    reasons: dict[str, str | None] = {}
    packages: dict[str, str] = {}
    taken: dict[str, int] = {"torch": 0, "transformers": 0}  # these are there in every training
    for name in names:
        before = _used_beside_tensors(device)
        package, reasons[name] = _attempted(partial(_try_optimizer, name, device))
        if package is not None:
            packages[name] = package
            taken.setdefault(package, max(0, _used_beside_tensors(device) - before))
    return reasons, {name: taken[package] for name, package in packages.items() if taken[package]}


def _used_beside_tensors(device: str) -> int:
    """Bytes of the device in use that are none of torch's allocator: on a CPU this process's own pages."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free - torch.cuda.memory_reserved())
    import psutil

    known = psutil.Process().memory_info()
    return int(known.rss - known.shared)


def made_optimizer(name: str, module: Any, device: str) -> Any:
    """The optimizer of a module's parameters as the Trainer would make it; raises whatever its library raises."""
    from transformers import Trainer

    arguments = TrainingArguments(
        output_dir=os.environ.get("TMPDIR", "/tmp"),
        optim=name,
        optim_target_modules="all-linear",
        use_cpu=device == "cpu",
        report_to="none",
    )
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, module)
    given = module.parameters()
    for one in (
        "params",
        "model",
        "optimizer_dict",
    ):  # those that look at the whole model, as `Trainer.create_optimizer`
        given = options.pop(one, given)
    optimizer = kind(given, **options)
    if callable(getattr(optimizer, "train", None)):  # schedule-free ones, as the Trainer does before each step
        optimizer.train()
    return optimizer


def _try_optimizer(name: str, device: str) -> str:
    """One step as the Trainer would make it: it imports, takes this device's tensors, and changes the weights; returns the
    package that it comes from."""
    # 128 x 64 weights: bitsandbytes keeps 8-bit state from 4096 elements on.
    module = torch.nn.Sequential(torch.nn.Linear(64, 128)).to("cpu" if device == "cpu" else "cuda")
    before = module[0].weight.detach().clone()
    optimizer = made_optimizer(name, module, device)
    if device == "cpu" and getattr(optimizer, "is_paged", False):
        raise RuntimeError("on a CPU it falls back to the one without pages")
    for _ in range(FIRST_STEPS):
        loss = module(torch.randn(4, 64, device=before.device)).square().sum()
        if hasattr(optimizer, "fused_backward"):  # LOMO: backward and step are one
            optimizer.fused_backward(loss, 1e-3)
        else:
            loss.backward()
            optimizer.step()
        if not torch.equal(before, module[0].weight):
            break
    else:
        raise RuntimeError("its step changed nothing")
    return type(optimizer).__module__.partition(".")[0]
