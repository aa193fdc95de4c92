"""Environment variables that hold several settings in one value, and how two are merged."""

import re
from collections.abc import Mapping

ALLOCATOR, OLDER_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""Settings of torch's device allocator; every torch knows the older name."""

PRELOAD, TUNABLES = "LD_PRELOAD", "GLIBC_TUNABLES"

# Name -> separators that are read, the separator that is written, the end of a setting's name (empty: all of it is the name).
_JOINED = {
    ALLOCATOR: (r",(?![^\[]*\])", ",", ":"),
    OLDER_ALLOCATOR: (r",(?![^\[]*\])", ",", ":"),
    PRELOAD: (r"[:\s]+", ":", ""),
    TUNABLES: (r":", ":", "="),
}

READ = (*_JOINED, "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
"""Variables of the user's own that an environment keeps: they decide memory and speed, and are not secrets."""


def joined(*several: Mapping[str, str]) -> dict[str, str]:
    """One environment of several. Variables that hold several settings keep all of them; of the same setting the last wins."""
    merged: dict[str, str] = {}
    for variables in several:
        for name, value in variables.items():
            if name in merged and name in _JOINED:
                value = _JOINED[name][1].join((settings_of(name, merged[name]) | settings_of(name, value)).values())
            merged[name] = value
    return merged


def settings_of(name: str, value: str) -> dict[str, str]:
    """Setting's name -> the whole setting, of a variable that holds several."""
    separators, _, end = _JOINED[name]
    parts = (part.strip() for part in re.split(separators, value))
    return {part.partition(end)[0].strip() if end else part: part for part in parts if part}


def allocator_variable(variables: Mapping[str, str]) -> str:
    """The variable of torch's device allocator: the newer name only if the user sets it."""
    return ALLOCATOR if ALLOCATOR in variables else OLDER_ALLOCATOR


def allocator_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Setting -> value in the user's own variable."""
    name = allocator_variable(variables)
    parts = settings_of(name, variables.get(name, ""))
    return {setting: part.partition(":")[2].strip() for setting, part in parts.items()}


def without_native_allocator(variables: Mapping[str, str]) -> str | None:
    """Reason why an option of torch's native allocator has no effect: the user's variable chooses CUDA's; else None."""
    if allocator_settings(variables).get("backend") != "cudaMallocAsync":
        return None
    return f"your {allocator_variable(variables)} sets backend:cudaMallocAsync, and this needs torch's native allocator"
