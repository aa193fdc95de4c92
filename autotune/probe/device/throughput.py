"""Throughput of the device: matrix products in each precision, and steps of each optimizer.

Random data: products of zeros run 13 to 15 % faster on some devices.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from autotune.probe.device.tryout import made_optimizer
from autotune.probe.order import Order
from autotune.space.settings.precision import ALIKE

SECONDS = 0.25
"""Seconds for each precision."""

WARMING_S = 2.0
"""Seconds of products before a GPU is measured: an idle card begins at a low clock, and then boosts to one that its power
limit or its heat takes back within seconds. Rates are of the clock that a training keeps."""

SIZES = {"cpu": 1024, "cuda": 8192}
"""Sides of square matrices: large enough for the device to be busy, small enough for several products in the time."""

MATRICES, SIDES = 24, {"cpu": 512, "cuda": 2048}
"""An optimizer's parameters: n square matrices of that side, and a vector with each, as in transformers."""

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def run(order: Order, objects: bytes, scratch: Path) -> dict[str, float | None]:
    """Floating-point operations / second by precision, and parameters / second by optimizer.

    Of those in `order.request["precisions"]` and `order.request["optimizers"]`; None for an optimizer that fails.
    """
    environment = order.environment
    assert environment is not None
    device = "cpu" if environment.is_cpu else "cuda"  # the only card that this process sees
    precisions = {name: ALIKE.get(name, name) for name in order.request["precisions"]}
    if not environment.is_cpu:
        _rate("fp16", device, WARMING_S)
    products = {name: _rate(name, device) for name in dict.fromkeys(precisions.values())}
    rates: dict[str, float | None] = {name: products[alike] for name, alike in precisions.items()}
    for name in order.request.get("optimizers", ()):
        rates[name] = None
        with contextlib.suppress(Exception):  # whatever its library raises
            rates[name] = _optimizer_rate(name, device)
    return rates


def _optimizer_rate(name: str, device: str) -> float:
    side = SIDES[device]
    layers = torch.nn.Sequential(*(torch.nn.Linear(side, side, device=device) for _ in range(MATRICES)))
    parameters = list(layers.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = made_optimizer(name, layers, device)
    before = parameters[0].detach().clone()
    optimizer.step()
    if torch.equal(before, parameters[0]):
        raise RuntimeError("it steps elsewhere: in the backward pass")
    return float(sum(parameter.numel() for parameter in parameters)) / _median_seconds(optimizer.step, device)


def _rate(precision: str, device: str, seconds: float = SECONDS) -> float:
    size = SIZES[device]
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    left, right = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))
    multiply = partial(torch.mm, left, right, out=torch.empty_like(left))
    return 2.0 * size**3 / _median_seconds(multiply, device, seconds)


def _median_seconds(work: Callable[[], Any], device: str, seconds: float = SECONDS) -> float:
    def once() -> None:
        work()
        if device == "cuda":
            torch.cuda.synchronize()

    once()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 3:
        begun = time.perf_counter()
        once()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
