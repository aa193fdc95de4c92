"""Trials of number formats, optimizers and four-bit weights on the device."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from transformers import Trainer, TrainingArguments

from autotune.space.settings.quantization import NAMES as QUANTIZATIONS

Result = TypeVar("Result")

FIRST_STEPS = 8
"""Steps in which an optimizer must change something: rectified Adam waits for its variance to settle (Liu et al., 2020)."""


def precisions(device: str) -> dict[str, str | None]:
    """Value -> None if it works, else why not. device: here and below `cpu` or `cuda`."""
    on_cpu = device == "cpu"
    major = 0 if on_cpu else torch.cuda.get_device_capability()[0]
    # torch.cuda.is_bf16_supported() also counts emulation, which is slower than float32.
    old = None if on_cpu or major >= 8 else f"compute capability {major}.x: bf16 and TF32 need 8.0 (Ampere)"
    autocast = old or why_not(lambda: _try_autocast(device, torch.bfloat16))
    return {
        "fp32": None,
        "tf32": "TF32 is a format of NVIDIA GPUs from Ampere on" if on_cpu else old,
        "fp16": "on a CPU the Trainer accepts fp16 and silently trains in fp32"
        if on_cpu
        else why_not(lambda: _try_autocast(device, torch.float16)),
        "bf16": autocast,
        "bf16_weights": old or why_not(lambda: _try_weights(device, torch.bfloat16)),
        "bf16_frozen": autocast,
    }


def why_not(attempt: Callable[[], None]) -> str | None:
    """Reason why the attempt fails, in one line; or None."""
    return attempted(attempt)[1]


def attempted(attempt: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """(result, None), or (None, why the attempt fails in one line)."""
    try:
        return attempt(), None
    except Exception as error:  # whatever a library raises, the value cannot be used
        line = next(iter(str(error).strip().splitlines()), "no message")
        return None, f"{type(error).__name__}: {line}"[:200]


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
    """A backward pass through a frozen layer of packed weights, as below an adapter."""
    import bitsandbytes

    weight = bitsandbytes.nn.Params4bit(torch.randn(128, 64), requires_grad=False, quant_type=name).to(device)
    layer = bitsandbytes.nn.Linear4bit(64, 128, bias=False, compute_dtype=torch.float32, quant_type=name, device="meta")
    layer.weight = weight
    inputs = torch.randn(8, 64, device=device, requires_grad=True)
    layer(inputs).square().sum().backward()
    if weight.numel() != 128 * 64 // 2 or inputs.grad is None or not inputs.grad.isfinite().all():
        raise RuntimeError("its weights were not packed, or no gradient came back")


def optimizers(names: list[str], device: str) -> tuple[dict[str, str | None], dict[str, int]]:
    """(name -> None if it works, else why not; name -> bytes that its library takes at its first step)."""
    reasons: dict[str, str | None] = {}
    packages: dict[str, str] = {}
    taken: dict[str, int] = {"torch": 0, "transformers": 0}  # these are there in every training
    for name in names:
        before = _used_beside_tensors(device)
        package, reasons[name] = attempted(partial(_try_optimizer, name, device))
        if package is not None:
            packages[name] = package
            taken.setdefault(package, max(0, _used_beside_tensors(device) - before))
    return reasons, {name: taken[package] for name, package in packages.items() if taken[package]}


def _used_beside_tensors(device: str) -> int:
    """Bytes of the device in use outside torch's allocator; on a CPU this process's own pages."""
    if device == "cuda":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free - torch.cuda.memory_reserved())
    import psutil

    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def made_optimizer(name: str, module: Any, device: str) -> Any:
    """The optimizer of a module's parameters as the Trainer makes it; raises whatever its library raises."""
    arguments = TrainingArguments(
        output_dir=os.environ.get("TMPDIR", "/tmp"),
        optim=name,
        optim_target_modules="all-linear",
        use_cpu=device == "cpu",
        report_to="none",
    )
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, module)
    parameters = module.parameters()
    for option in ("params", "model", "optimizer_dict"):  # as `Trainer.create_optimizer`
        parameters = options.pop(option, parameters)
    optimizer = kind(parameters, **options)
    if callable(getattr(optimizer, "train", None)):  # schedule-free ones, as the Trainer does before each step
        optimizer.train()
    return optimizer


def _try_optimizer(name: str, device: str) -> str:
    """Make steps as the Trainer does until one changes the weights; returns the package that the optimizer is from."""
    # 128 x 64 weights: bitsandbytes keeps 8-bit state from 4096 elements on.
    module = torch.nn.Sequential(torch.nn.Linear(64, 128)).to(device)
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


def quantizations(device: str) -> dict[str, str | None]:
    """Value -> None if it works, else why not."""
    return {name: why_not(partial(_try_four_bits, name, device)) for name in QUANTIZATIONS[1:]}
