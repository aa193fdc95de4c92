"""Model, data and device of a study in words."""

from autotune.core.environment import Environment
from autotune.core.paths import named, scrubbed
from autotune.core.units import counted, format_bytes
from autotune.space.variables import PRELOAD, settings_of
from autotune.study.result import SearchResult


def study_parts(result: SearchResult) -> list[tuple[str, str]]:
    """Model, data and device of the study, as (label, text)."""
    limit, allowed = format_bytes(result.memory_limit_bytes), format_bytes(result.allowed_bytes)
    return [
        ("model", result.model_text),
        ("task", f"{result.workload.task}, judged by {result.request.objective.replace('_', ' ')}"),
        ("data", result.data_text),
        ("device", result.device_text),
        ("limit", f"{limit} of memory, {allowed} allowed"),
        *device_parts(result.environment),
        ("versions", result.environment.versions_text),
    ]


def device_parts(environment: Environment) -> list[tuple[str, str]]:
    """The device as (label, text), without folders of the machine and tokens.

    Memory at the start, cores, of a GPU its driver and other processes, and the user's own variables that affect memory.
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
            (
                "topology",
                f"{counted(environment.device_count, 'GPU')} visible; {environment.topology or 'slot unknown'}",
            ),
            ("others", ", ".join(environment.others) or "none that NVML shows"),
        ]
    if environment.unused_gpu:
        parts.append(("GPU", f"not used: {environment.unused_gpu}"))
    variables = {
        name: ":".join(map(named, settings_of(name, value))) if name == PRELOAD else value
        for name, value in environment.variables.items()
    }
    if variables:
        parts.append(("variables", " ".join(f"{name}={value}" for name, value in variables.items())))
    return [(label, scrubbed(text)) for label, text in parts]
