"""Text of `autotune doctor`: the facts about a device."""

from autotune.core.environment import Environment
from autotune.report.device import device_parts


def doctor_lines(environment: Environment) -> list[str]:
    """Device, memory, driver, other processes, versions, and which settings work here or why they do not."""
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
    allocators = ", ".join(environment.libraries) or "none found (apt install libjemalloc2 libtcmalloc-minimal4)"
    lines.append(f"allocators  {allocators}")
    return lines
