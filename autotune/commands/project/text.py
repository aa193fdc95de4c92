"""Text of a projection: a row for each number of ranks, the limit, and what is not known."""

from autotune.commands.layout import aligned
from autotune.commands.project.links import EFFICIENCY
from autotune.commands.project.run import UNKNOWN, ProjectedRun, Projection
from autotune.core.units import format_bytes, format_duration, three_digits
from autotune.report.markdown import wrapped
from autotune.report.trial_text import speed_text


def projection_lines(projection: Projection) -> list[str]:
    """For a terminal of 80 columns."""
    result, link, trial = projection.result, projection.link, projection.result.best
    low, high = (f"{share:.0%}" for share in EFFICIENCY)
    exchange = "DDP" if projection.fsdp == "none" else f"FSDP, {projection.fsdp}"
    facts = (
        f"Projection, not measured: {result.title}, on several of {result.environment.device_name}.",
        f"Measured on one: {speed_text(trial)} samples/s, trial {trial.number}, {trial.configuration}.",
        f"Exchange: {exchange}, {format_bytes(projection.gradient_bytes)} of gradients, over {link.name} with {low} to "
        f"{high} of {link.gigabytes_per_second:g} GB/s ({link.source}).",
    )
    head = ["ranks", "sizes", "projected samples/s", "speed-up", "scaling efficiency"]
    return [
        *(line for fact in facts for line in wrapped(fact)),
        "",
        *aligned([head, *map(_row, projection.runs)], 0),
        "",
        *wrapped(limit_sentence(projection.runs[-1])),
        *(line for note in projection.notes for line in wrapped(f"note: {note}")),
        *(line for unknown in UNKNOWN for line in wrapped(f"not known: {unknown}")),
    ]


def limit_sentence(run: ProjectedRun) -> str:
    """The part of a step that limits this number of ranks most."""
    if run.limit is None:
        return f"On {run.ranks} ranks no part of a step limits the speed."
    step = f"a step of {format_duration(run.step_s.low)} to {format_duration(run.step_s.high)}"
    return f"On {run.ranks} ranks the limit is {run.limit}: it costs up to {format_duration(run.lost_s[run.limit])} of {step}."


def _row(run: ProjectedRun) -> list[str]:
    sizes = f"{run.configuration.micro_batch_size} x {run.configuration.gradient_accumulation_steps}"
    speed, gain, efficiency = run.samples_per_second, run.speedup, run.efficiency
    return [
        str(run.ranks),
        sizes,
        f"{three_digits(speed.low)} to {three_digits(speed.high)}",
        f"{gain.low:.2f}x to {gain.high:.2f}x",
        f"{efficiency.low:.0%} to {efficiency.high:.0%}",
    ]
