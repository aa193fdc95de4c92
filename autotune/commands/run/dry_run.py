"""`--dry-run`: what would be searched, and how, before anything is trained."""

from collections.abc import Mapping
from typing import Any

from autotune.commands.run.exchange import AGAIN, Facts, way_line
from autotune.core import Workload
from autotune.core.configuration import word
from autotune.core.request import tuning_request
from autotune.core.units import counted, format_seconds
from autotune.probe.device import nvml
from autotune.probe.order import timings
from autotune.probe.process.launcher import HostSet
from autotune.probe.queries import read_environment
from autotune.space.build import build_space
from autotune.space.setup import what_differs


def dry_run_lines(facts: Facts, options: Mapping[str, Any]) -> list[str]:
    """Lines for people. Reads the device in processes of autotune; raises what a search raises of its space."""
    workload = Workload.from_dict(facts.workload)
    request = tuning_request(workload.name, facts.global_batch_size, **facts.request_options(options))
    with HostSet() as host:
        environment, _ = read_environment(host, request, nvml.choose_device(request.device))
    space = build_space(request, environment, workload, what_differs(request.training_args, environment))
    settings = ", ".join(f"{name} {word(value)}" for name, value in space.baseline.values.items())
    sizes = space.baseline
    ranks = f" x {facts.ranks} ranks" if facts.ranks > 1 else ""
    timing, _ = timings(environment.is_cpu)
    steps = f"{timing.untimed_least + timing.timed_least} to {timing.untimed_most + timing.timed_most}"
    length = f"at most {counted(request.n_trials, 'trial')} of {steps} steps, then the fastest beside yours"
    if facts.by == AGAIN:
        whole = format_seconds(request.n_trials * facts.seconds)
        length += f"; each start takes {format_seconds(facts.seconds)}, so {whole} at the least"
    if request.timeout_s is not None:
        length += f"; {format_seconds(request.timeout_s)} in all (--timeout)"
    rows = {
        "Trainer": f"{facts.trainer}, call {facts.call} of train()",
        "Model": f"{workload.architecture}, {workload.parameters:,} parameters",
        "Data": f"{counted(workload.samples, 'sample')}, {facts.lengths}",
        "Global batch": f"{sizes.micro_batch_size} x {sizes.gradient_accumulation_steps}{ranks} = {facts.global_batch_size}",
        "Baseline": settings,
        "Device": environment.device_name,
        "Trials": way_line(facts.by, facts.why),
        "Side effects": "; ".join(facts.side_effects) or "nothing but the training",
        "Space": f"{request.space}, {counted(space.size, 'configuration')}",
        "Length": length,
    }
    return [f"{name:14}{text}" for name, text in rows.items()]
