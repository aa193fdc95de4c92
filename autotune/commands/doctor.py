"""The facts about a device, for people."""

from autotune.core.environment import Environment
from autotune.core.paths import named
from autotune.core.units import format_bytes
from autotune.space.variables import PRELOAD, settings_of


def device_parts(environment: Environment) -> list[tuple[str, str]]:
    """What is known of a device beside its name, as (label, text): memory at the start, cores, of a card its driver and
    neighbours, and the caller's own variables that decide memory; no place of the machine.
    """
    free, total = format_bytes(environment.free_memory_bytes), format_bytes(environment.total_memory_bytes)
    parts = [
        ("memory", f"{free} free of {total}"),
        ("cores", f"{environment.cpu_count}, {environment.threads} compute threads"),
    ]
    if not environment.is_cpu:
        capability = environment.compute_capability
        compute = f"; compute capability {capability[0]}.{capability[1]}" if capability else ""
        parts += [
            ("driver", f"{environment.driver or 'unknown'}{compute}"),
            ("context", f"{format_bytes(environment.context_bytes)} ({environment.context_source})"),
            ("topology", f"{environment.device_count} GPU(s) visible; {environment.topology or 'slot unknown'}"),
            ("others", ", ".join(environment.others) or "nobody else is on the device"),
        ]
    if environment.variables:
        parts.append(("variables", " ".join(f"{name}={_told(name, v)}" for name, v in environment.variables.items())))
    return parts


def _told(name: str, value: str) -> str:
    """A variable's value; of libraries that are loaded first their names alone."""
    return ":".join(named(one) for one in settings_of(name, value)) if name == PRELOAD else value


def doctor_lines(environment: Environment) -> list[str]:
    """Device, memory, driver, who else is on it, versions, and what works here and what does not and why."""
    lines = [f"device      {environment.device}: {environment.device_name}"]
    lines += [f"{label:11} {text}" for label, text in device_parts(environment)]
    lines.append(f"versions    {', '.join(f'{name} {version}' for name, version in environment.versions.items())}")
    tables = {
        "precisions": environment.precisions,
        "optimizers": environment.optimizers,
        "compiling": environment.compile_backends,
        "4 bits": environment.quantizations,
        "kernels": {"liger": environment.liger},
    }
    for title, table in tables.items():
        for number, (value, reason) in enumerate(table.items()):
            label = title if number == 0 else ""
            lines.append(f"{label:11} {value:28} {'works' if reason is None else f'no: {reason}'}")
    found = ", ".join(environment.libraries) or "none found (apt install libjemalloc2 libtcmalloc-minimal4)"
    lines.append(f"allocators  {found}")
    return lines
