"""CUDA's order of GPUs, which CUDA alone knows: asked of it in a process of its own, as asking wakes it."""

import contextlib
import ctypes
import os
import subprocess
import sys
import uuid

ASKING_S = 60.0
"""Deadline: initialising CUDA takes seconds on a machine with many cards."""


def cuda_order() -> tuple[str, ...]:
    """Uuids of all GPUs as CUDA counts them without CUDA_VISIBLE_DEVICES; empty if CUDA does not say."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [sys.executable, "-I", "-S", __file__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=ASKING_S)
        return tuple(done.stdout.split())
    return ()


def _print_uuids() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    count, device, name = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    _check(cuda.cuInit(0))
    _check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    for number in range(count.value):
        _check(cuda.cuDeviceGet(ctypes.byref(device), number))
        _check(cuda.cuDeviceGetUuid_v2(ctypes.byref(name), device))
        print(f"GPU-{uuid.UUID(bytes=bytes(name))}")


def _check(error: int) -> None:
    if error:
        sys.exit(f"CUDA error {error}")


if __name__ == "__main__":
    _print_uuids()
