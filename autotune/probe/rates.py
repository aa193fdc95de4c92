"""What the device can do at its best: a second of matrix products in each precision.

Random data: products of zeros run 13 to 15 % faster on some devices.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autotune.probe.order import Order

SECONDS = 0.25
"""For each precision."""

SIZES = {"cpu": 1024, "cuda": 8192}
"""Of square matrices: large enough for the device to be busy, small enough for several products in the time."""

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def run(order: Order, objects: bytes, scratch: Path) -> dict[str, float]:
    """precision -> floating-point operations a second, for those in `order.request["precisions"]` (units: 1 / s)."""
    environment = order.environment
    assert environment is not None
    if environment.device_uuid:
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = environment.device_uuid
    return {name: _rate(name, environment.device) for name in order.request["precisions"]}


def _rate(precision: str, device: str) -> float:
    on_cuda = device.startswith("cuda")
    size = SIZES["cuda" if on_cuda else "cpu"]
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    one, other = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))
    product = torch.empty_like(one)

    def once() -> None:
        torch.mm(one, other, out=product)
        if on_cuda:
            torch.cuda.synchronize()

    return 2.0 * size**3 / _median_seconds(once)


def _median_seconds(once: Callable[[], Any]) -> float:
    once()
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(times) < 3:
        begun = time.perf_counter()
        once()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
