"""Text of `autotune doctor`: the facts about a device, and which settings work on it."""

from collections.abc import Mapping

from autotune.core.environment import Environment
from autotune.core.units import counted, format_bytes
from autotune.report.device import device_parts
from autotune.report.markdown import wrapped


def doctor_lines(environment: Environment, everything: bool = False) -> list[str]:
    """A screen of what the device is and which settings work on it; everything: also what does not, and why."""
    tables = {
        "precisions": environment.precisions,
        "optimizers": environment.optimizers,
        "compiling": environment.compile_backends,
        "4 bits": environment.quantizations,
        "kernels": {"liger": environment.liger},
    }
    allocators = ", ".join(environment.libraries) or "none found (apt install libjemalloc2 libtcmalloc-minimal4)"
    parts = [
        *device_parts(environment),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment.versions.items())),
        *(part for label, table in tables.items() for part in _parts(label, table, everything)),
        ("allocators", allocators),
    ]
    reasons = [reason for table in tables.values() for reason in table.values()]
    failing = sum(reason is not None for reason in reasons)
    ready = f"Ready: {environment.device} ({environment.device_name}), {counted(environment.cpu_count, 'core')}"
    lines = [*wrapped(f"{ready}, {format_bytes(environment.free_memory_bytes)} free."), ""]
    lines += [line for label, text in parts for line in wrapped(text, f"{label:11} ", " " * 12)]
    if failing and not everything:
        lines += ["", f"{failing} of {len(reasons)} cannot be used here: `autotune doctor --all` gives the reasons."]
    if environment.checked_on:
        lines += ["", f"Checked on {environment.checked_on}: `autotune doctor --fresh` checks again."]
    return lines


def _parts(label: str, table: Mapping[str, str | None], everything: bool) -> list[tuple[str, str]]:
    """Working entries in one line; everything: below it the others with reasons, grouped by reason."""
    works = [name for name, reason in table.items() if reason is None]
    parts = [(label, ", ".join(works) or "none")]
    for reason in dict.fromkeys(filter(None, table.values())) if everything else ():
        names = ", ".join(name for name, why in table.items() if why == reason)
        parts.append(("", f"not {names}: {reason}"))
    return parts
