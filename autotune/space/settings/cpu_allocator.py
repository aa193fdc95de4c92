"""CPU allocator: the library that allocates the host's memory, and how it gives back what is freed."""

from collections.abc import Iterable, Mapping

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.setting import Context, Costs, Effect, Observed, Setting
from autotune.space.variables import PRELOAD, TUNABLES

MAPPED = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "1", TUNABLES: "glibc.malloc.hugetlb=1"}
"""Blocks from 256 KiB on are mapped and given back at once, in huge pages; with a fixed threshold glibc does not raise it
(mallopt(3)). With checkpointing it halved peaks (173 to 74 MiB, measured on two cores) and took 10 to 25 % of the speed."""

PACKAGES = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}
"""Library -> the Debian package that has it."""


def _from_user(context: Context) -> str:
    """Value in the user's environment variables: no field of TrainingArguments has it."""
    variables = context.environment.variables
    return _allocator(variables, variables.get(PRELOAD, "").split("/"))


def _allocator(variables: Mapping[str, str], libraries: Iterable[str]) -> str:
    names = " ".join(libraries)
    mapped = all(variables.get(name) == MAPPED[name] for name in MAPPED if name != TUNABLES)
    return next((name for name in PACKAGES if f"lib{name}" in names), "glibc_mmap" if mapped else "none")


def _apply(value: Value, environment: Environment) -> Effect:
    if value == "none":
        return Effect()
    if value == "glibc_mmap":
        return Effect(host=MAPPED)
    return Effect(host={PRELOAD: environment.libraries.get(str(value), f"lib{value}.so")})


def _read_back(observed: Observed) -> str:
    """Value that the library files in the process and the variables of its start show."""
    return _allocator(observed.started_with, observed.libraries)


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    own, environment = _from_user(context), context.environment
    if value == own:
        return None
    if own != "none":
        return Exclusion(ExclusionKind.VARIABLES, detail=f"your own variables start every process with {own}")
    if not environment.is_cpu:
        return Exclusion(ExclusionKind.DEVICE, detail="torch allocates the GPU's memory: this is for the host's")
    if value == "glibc_mmap":
        is_glibc = "glibc" in environment.libraries
        return None if is_glibc else Exclusion(ExclusionKind.LIBRARY, detail="the C library here is not glibc")
    if value not in environment.libraries:
        return Exclusion(ExclusionKind.LIBRARY, detail=f"not installed: apt install {PACKAGES[str(value)]}")
    return None


SETTING = Setting(
    name="cpu_allocator",
    values=("none", "glibc_mmap", *PACKAGES),
    summary="The library that allocates CPU memory: giving freed memory back at once lowers peaks, keeping it is faster.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    costs=Costs(traced=False, of_process=True),
)
