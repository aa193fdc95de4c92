"""Facts about the device and the software."""

import contextlib
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.io import Serializable

GIB = 1 << 30

LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "bitsandbytes", "peft", "deepspeed", "optuna")
"""Packages with versions that are part of an environment's identity."""


def installed_versions() -> dict[str, str]:
    """Library, python among them -> its version; without packages that are not installed."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions | {"python": platform.python_version()}


@dataclass(frozen=True)
class Environment(Serializable):
    """Facts about the device and the libraries; no host name, no secret. None: unknown, or without meaning on a CPU."""

    device: str  #: as torch names it: `cpu` or `cuda:0`
    device_name: str  #: the processor or card as it calls itself
    total_memory_bytes: int  #: bytes of the device; on a CPU of the machine or the cgroup's limit
    free_memory_bytes: int  #: bytes that are free at the start
    host_free_bytes: int | None = None  #: of the machine's memory (of its control group) that are free at the start
    device_uuid: str | None = None  #: NVML's name of the card
    device_count: int = 1  #: cards that are visible
    device_uuids: tuple[str, ...] = ()  #: NVML's names of the visible cards, this one first
    compute_capability: tuple[int, int] | None = None  #: of the card, as (9, 0)
    driver: str | None = None  #: its version
    topology: str = ""  #: the card's slot, as text
    cpu_count: int = 1  #: cores that this process may use
    threads: int = 1  #: compute threads a training process gets by default
    context_bytes: int = 0  #: bytes of the device that a process holds before its first tensor; 0 on a CPU
    context_source: str = ""  #: source of these bytes
    versions: Mapping[str, str] = field(default_factory=dict)  #: library, python included -> its version
    autotune_version: str = ""  #: of autotune, which decides no speed; empty in studies of before it was written
    checked_on: str = ""  #: date on which precisions, optimizers and compilers were tried, as 2026-11-26
    training_argument_fields: tuple[str, ...] = ()  #: the names that this transformers' TrainingArguments has
    training_argument_defaults: Mapping[str, Any] = field(default_factory=dict)  #: of the fields with a plain value
    checkpointing_options: tuple[str, ...] = ()  #: options of this version: `every_n_layers`, `offload`
    precisions: Mapping[str, str | None] = field(default_factory=dict)  #: value -> reason against it here, or None
    optimizers: Mapping[str, str | None] = field(default_factory=dict)  #: as `precisions`
    optimizer_bytes: Mapping[str, int] = field(default_factory=dict)  #: bytes its library takes in addition to tensors
    quantizations: Mapping[str, str | None] = field(default_factory=dict)  #: as `precisions`
    unused_gpu: str = ""  #: reason why `auto` means the CPU on a machine that has a GPU or its driver; else empty
    others: tuple[str, ...] = ()  #: processes that hold memory on the device, as text
    libraries: Mapping[str, str] = field(default_factory=dict)  #: installed library to preload (`jemalloc`) -> its name
    variables: Mapping[str, str] = field(default_factory=dict)  #: the user's environment variables that autotune reads
    compile_backends: Mapping[str, str | None] = field(default_factory=dict)  #: of torch.compile, as `precisions`
    liger: str | None = "liger-kernel was not looked for"  #: reason why Liger's kernels cannot be used here, or None

    @property
    def is_cpu(self) -> bool:
        """True if the training runs on the CPU."""
        return self.device == "cpu"

    @property
    def versions_text(self) -> str:
        """`autotune 0.1.0, torch 2.13.0, ...`."""
        ours = {"autotune": self.autotune_version} if self.autotune_version else {}
        return ", ".join(f"{name} {version}" for name, version in (ours | dict(self.versions)).items())

    def identity(self) -> dict[str, Any]:
        """The facts that decide speed: numbers measured under other ones must not be mixed.

        Memory is in whole GiB: what a virtual machine shows of it changes by KiB from boot to boot.
        """
        return {
            "device_name": self.device_name,
            "memory_gib": round(self.total_memory_bytes / GIB),
            "driver": self.driver,
            "cpu_count": self.cpu_count,
            "threads": self.threads,
            "versions": dict(self.versions),
            **({"variables": dict(self.variables)} if self.variables else {}),
        }

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with any fact of `identity()`."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:12]
