"""The facts about a device, for people."""

from autotune.environment import Environment
from autotune.units import format_bytes


def doctor_lines(environment: Environment) -> list[str]:
    """Device, memory, driver, who else is on it, versions, and what works here and what does not and why."""
    capability = environment.compute_capability
    lines = [
        f"device      {environment.device}: {environment.device_name}"
        + (f", compute capability {capability[0]}.{capability[1]}" if capability else ""),
        f"memory      {format_bytes(environment.free_memory_bytes)} free of {format_bytes(environment.total_memory_bytes)}",
        f"cores       {environment.cpu_count}, {environment.threads} compute threads",
    ]
    if not environment.is_cpu:
        lines += [
            f"driver      {environment.driver}",
            f"context     {format_bytes(environment.context_bytes)} ({environment.context_source})",
            f"topology    {environment.device_count} GPU(s) visible; {environment.topology or 'slot unknown'}",
            f"others      {', '.join(environment.others) or 'nobody else is on the device'}",
        ]
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
