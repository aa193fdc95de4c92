"""Environment variables that hold several settings in one value, and how two of them become one."""

import re
from collections.abc import Mapping

ALLOCATOR, OLDER_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""Settings of torch's device allocator; the older name is the one that every torch knows."""

PRELOAD, TUNABLES = "LD_PRELOAD", "GLIBC_TUNABLES"

# Name -> what stands between its settings, what goes between them, what ends a setting's name (nothing: all of it is).
_JOINED = {
    ALLOCATOR: (r",(?![^\[]*\])", ",", ":"),
    OLDER_ALLOCATOR: (r",(?![^\[]*\])", ",", ":"),
    PRELOAD: (r"[:\s]+", ":", ""),
    TUNABLES: (r":", ":", "="),
}

READ = (*_JOINED, "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
"""Variables of the caller's own that an environment keeps: they decide memory and speed, and are no secrets."""


def joined(*several: Mapping[str, str]) -> dict[str, str]:
    """One environment of several; what holds several settings keeps those of all, and of one setting the last value."""
    made: dict[str, str] = {}
    for one in several:
        for name, value in one.items():
            made[name] = _together(name, made[name], value) if name in made else value
    return made


def settings_of(name: str, value: str) -> dict[str, str]:
    """Setting's name -> the whole setting, of a variable that holds several."""
    between, _, ends = _JOINED[name]
    parts = (part.strip() for part in re.split(between, value))
    return {part.partition(ends)[0].strip() if ends else part: part for part in parts if part}


def _together(name: str, before: str, after: str) -> str:
    if name not in _JOINED:
        return after
    return _JOINED[name][1].join((settings_of(name, before) | settings_of(name, after)).values())


def allocator_variable(own: Mapping[str, str]) -> str:
    """The variable that torch's device allocator is told by: the newer name only where the caller uses it."""
    return ALLOCATOR if ALLOCATOR in own else OLDER_ALLOCATOR


def allocator_settings(own: Mapping[str, str]) -> dict[str, str]:
    """Setting -> value of the caller's own variable."""
    name = allocator_variable(own)
    parts = settings_of(name, own.get(name, ""))
    return {setting: part.partition(":")[2].strip() for setting, part in parts.items()}
