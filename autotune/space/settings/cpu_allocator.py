"""The CPU's allocator: who hands out the host's memory, and how it gives back what is freed."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, one_of
from autotune.space.variables import PRELOAD, TUNABLES

MAPPED = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "1", TUNABLES: "glibc.malloc.hugetlb=1"}
"""Blocks from 256 KiB on are mapped and given back at once, in huge pages; with a fixed threshold glibc does not raise it
(mallopt(3)). With checkpointing it halved peaks (173 to 74 MiB, measured on two cores) and took 10 to 25 % of the speed."""

PACKAGES = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}
"""Library -> the Debian package that has it."""


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """As the caller's own variables say: no field of TrainingArguments does."""
    return _shown(environment.variables, environment.variables.get(PRELOAD, "").split("/"))


def _shown(variables: Mapping[str, str], libraries: Any) -> str:
    for name in PACKAGES:
        if any(f"lib{name}" in library for library in libraries):
            return name
    mapped = all(variables.get(name) == MAPPED[name] for name in MAPPED if name != TUNABLES)
    return "glibc_mmap" if mapped else "none"


def _apply(value: Value, environment: Environment) -> Effect:
    if value == "none":
        return Effect()
    if value == "glibc_mmap":
        return Effect(host=MAPPED)
    return Effect(host={PRELOAD: environment.libraries.get(str(value), f"lib{value}.so")})


def _read_back(observed: Observed) -> str:
    """By the library files in the process, and the variables that it was started with."""
    return _shown(observed.started_with, observed.libraries)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    own = _from_user({}, environment, workload)
    if value == own:
        return None
    if own != "none":
        return f"your own variables start every process with {own}"
    if value == "none":
        return None
    if not environment.is_cpu:
        return "the GPU's memory is handed out by torch: this is the host's"
    if value == "glibc_mmap":
        return None if "glibc" in environment.libraries else "the C library here is not glibc"
    if value not in environment.libraries:
        return f"not installed: apt install {PACKAGES[str(value)]}"
    return None


SETTING = Setting(
    name="cpu_allocator",
    values=("none", "glibc_mmap", *PACKAGES),
    changes=frozenset({"speed", "memory"}),
    summary="Who hands out the CPU's memory: what gives freed memory back at once lowers peaks, what keeps it is faster.",
    read=one_of("none", "glibc_mmap", *PACKAGES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    traced=False,
    of_process=True,
)
