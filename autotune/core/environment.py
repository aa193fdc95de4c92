"""Environment: what is known of the device and the software, as plain facts."""

import contextlib
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "bitsandbytes", "peft", "deepspeed", "optuna")
"""Packages whose versions make an environment another one."""


def installed_versions() -> dict[str, str]:
    """Library, python among them -> its version; without those that are not installed."""
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions | {"python": platform.python_version()}


@dataclass(frozen=True)
class Environment:
    """Facts about the device and the libraries; no host name, no secret.

    device: `cpu` or `cuda:0`. device_name: the processor or card as it calls itself. device_uuid: NVML's name of the card,
    None on CPU. device_count: cards that are visible. device_uuids: their names, that card's first.
    compute_capability: of the card, as (9, 0); None on CPU. driver: its version; None on CPU. topology: the card's slot, as text.
    total_memory_bytes, free_memory_bytes: bytes of the device, at the start (cgroup limits counted on CPU).
    context_bytes: bytes of the device that a process holds before its first tensor (0 on CPU).
    context_source: how these were read.
    versions: library, python among them -> its version.
    threads: compute threads a training process gets by default; cpu_count: cores this process may use.
    training_argument_fields: the names that this transformers' TrainingArguments knows; training_argument_defaults:
    those of their defaults that are plain values.
    checkpointing_options: of what not every transformers' checkpointing knows (`every_n_layers`, `offload`), what this one does.
    precisions, optimizers, quantizations: value -> None where it really works here, else the reason why not.
    optimizer_bytes: optimizer -> bytes of the device that its library takes beside all tensors, where that is not torch.
    libraries: library that a process can be started with (`jemalloc`) -> its name for the loader; absent: not installed.
    variables: the caller's own variables that hold several settings or decide on memory (variables.READ).
    compile_backends: backend of torch.compile -> None where it can be used here, else why not.
    liger: why Liger's kernels cannot be used here; None where they can.
    others: processes that hold memory on the device, as text for people.
    """

    device: str
    device_name: str
    total_memory_bytes: int
    free_memory_bytes: int
    device_uuid: str | None = None
    device_count: int = 1
    device_uuids: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    driver: str | None = None
    topology: str = ""
    cpu_count: int = 1
    threads: int = 1
    context_bytes: int = 0
    context_source: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    training_argument_fields: tuple[str, ...] = ()
    training_argument_defaults: Mapping[str, Any] = field(default_factory=dict)
    checkpointing_options: tuple[str, ...] = ()
    precisions: Mapping[str, str | None] = field(default_factory=dict)
    optimizers: Mapping[str, str | None] = field(default_factory=dict)
    optimizer_bytes: Mapping[str, int] = field(default_factory=dict)
    quantizations: Mapping[str, str | None] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    compile_backends: Mapping[str, str | None] = field(default_factory=dict)
    liger: str | None = "liger-kernel was not looked for"

    @property
    def is_cpu(self) -> bool:
        """Whether the training runs on the processor itself."""
        return self.device == "cpu"

    def identity(self) -> dict[str, Any]:
        """The facts that decide speed: numbers measured under other ones must not be mixed."""
        return {
            "device_name": self.device_name,
            "total_memory_bytes": self.total_memory_bytes,
            "driver": self.driver,
            "cpu_count": self.cpu_count,
            "threads": self.threads,
            "versions": dict(self.versions),
            **({"variables": dict(self.variables)} if self.variables else {}),
        }

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with any fact of `identity()`."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Environment":
        """The environment that `to_dict` made plain. Raises KeyError or TypeError for other data."""
        capability = data["compute_capability"]
        return cls(
            **{
                **data,
                "compute_capability": tuple(capability) if capability else None,
                "training_argument_fields": tuple(data["training_argument_fields"]),
                "checkpointing_options": tuple(data.get("checkpointing_options", ())),
                "device_uuids": tuple(data.get("device_uuids", ())),
                "others": tuple(data["others"]),
            }
        )
