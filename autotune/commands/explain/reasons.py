"""Reasons for a speed: what bounds a training, and what a change did to its step and memory."""

from collections.abc import Sequence

from autotune.core import Configuration, Interval, Measurement, Outcome, Trial, Value
from autotune.core.configuration import word
from autotune.core.units import format_bytes, format_duration
from autotune.space.dominance import implied_by
from autotune.space.settings import MICRO, SETTINGS
from autotune.space.settings.micro_batch_size import divisors
from autotune.space.utilization import Utilization

SMALLEST_CHANGE = 0.02
"""Share of the step, or of the peak: smaller changes are no reason."""


# Bounds -----------------------------------------------------------------------------------------------------------


def bound(trial: Trial, trials: Sequence[Trial], utilization: Utilization | None = None) -> tuple[str, str]:
    """(`input`, `memory`, `compute`, `optimizer` or `overhead`, a sentence why); empty where no step was timed.

    Input-bound as `Measurement.input_bound` says; memory-bound where a value that needs more memory ran out of it in
    the trials; else by the part of the step that takes most.
    """
    final = trial.final
    if not final.feasible:
        return "", ""
    wait = f"{final.data_wait_share or 0.0:.0%} of a step is waiting for data"
    if final.input_bound:
        return "input", f"input-bound: {wait}"
    free = f"its peak is {1 + final.fits:.0%} of the memory allowed" if final.allowed_bytes else ""
    shares = {part: seconds / (final.step_time_s or 1.0) for part, seconds in parts(final).items()}
    busy = f"{shares['micro-steps']:.0%} of a step is forward and backward"
    busy += f", {shares['optimizer']:.0%} clipping and optimizer, {shares['data wait']:.0%} waiting for data"
    if utilization is not None and utilization.text:
        busy += f"; arithmetic at {utilization.text}"
    if larger := _did_not_fit(trial, trials):
        return "memory", f"memory-bound: {larger} did not fit{f' ({free})' if free else ''}; {busy}"
    most = max(("micro-steps", "optimizer", "Trainer"), key=lambda part: shares[part])
    kind = {"micro-steps": "compute", "optimizer": "optimizer", "Trainer": "overhead"}[most]
    return kind, f"{kind}-bound: {busy}{f'; {free}' if free else ''}"


def _did_not_fit(trial: Trial, trials: Sequence[Trial]) -> str:
    """A single change of this trial that needs more memory and ran out of it: `micro_batch_size 16 (trial 5)`."""
    values = trial.configuration.values
    failed = [
        each for each in trials if each.final.outcome is Outcome.OUT_OF_MEMORY and not each.final.observed_warnings
    ]
    for name, own in values.items():
        setting = SETTINGS[name]
        tried = dict.fromkeys(each.configuration.values[name] for each in trials if name in each.configuration.values)
        for value in divisors(trial.configuration.global_batch_size) if name == MICRO else tried:
            if value == own or "memory" not in setting.changes or not setting.needs_at_least_as_much(value, own):
                continue
            if (implying := implied_by(with_value(trial.configuration, name, value), failed)) is not None:
                return f"{name} {value} (trial {implying.number})"
    return ""


def with_value(configuration: Configuration, name: str, value: Value) -> Configuration:
    """The configuration with another value of one setting; accumulation follows the micro-batch size."""
    values = {**configuration.values, name: value}
    micro = int(values.pop(MICRO))
    return Configuration.exact(configuration.global_batch_size, micro, values, configuration.data_parallel_size)


# Parts of step and memory -----------------------------------------------------------------------------------------


def parts(measurement: Measurement) -> dict[str, float]:
    """Seconds of a step by part; their sum is the step's time."""
    step = measurement.step_time_s or 0.0
    micro = (measurement.micro_step_time_s or 0.0) * measurement.accumulation_steps
    optimizer, wait = measurement.optimizer_step_time_s or 0.0, measurement.data_wait_s or 0.0
    timed = {"micro-steps": micro, "optimizer": optimizer, "data wait": wait}
    return timed | {"Trainer": max(0.0, step - sum(timed.values()))}


def step_split(measurement: Measurement) -> dict[str, float | None]:
    """Mean seconds of a step and its timed parts; the last micro-step without the optimizer.

    None where nothing was timed, and for a missing first or middle micro-step.
    """
    steps, run = measurement.composed_steps, measurement.accumulation_steps_run

    def mean(name: str, least: int) -> float | None:
        return sum(getattr(step, name) for step in steps) / len(steps) if steps and run >= least else None

    last, optimizer = mean("last_s", 1), measurement.optimizer_step_time_s
    return {
        "step_time_s": measurement.step_time_s,
        "data_wait_s": measurement.data_wait_s,
        "first_micro_step_s": mean("first_s", 2),
        "middle_micro_step_s": mean("middle_s", 3),
        "last_micro_step_s": None if last is None else last - (optimizer or 0.0),
        "forward_time_s": measurement.forward_time_s,
        "backward_time_s": measurement.backward_time_s,
        "optimizer_step_time_s": optimizer,
        "overhead_time_s": measurement.overhead_time_s,
    }


def changes(before: Trial, after: Trial) -> str:
    """`micro-steps 30 % shorter, peak 20 MiB less`: the part that changed the step most comes first.

    Micro-steps are those of one step together, so that different sizes can be compared.
    """
    old, new = parts(before.final), parts(after.final)
    smallest = SMALLEST_CHANGE * max(before.final.step_time_s or 0.0, 1e-12)
    texts = []
    for part in sorted(old, key=lambda part: abs(new[part] - old[part]), reverse=True):
        more = new[part] - old[part]
        if part == "micro-steps" and abs(more) > smallest and old[part] > 0:
            texts.append(f"{part} {abs(more / old[part]):.0%} {'longer' if more > 0 else 'shorter'}")
        elif abs(more) > smallest:
            texts.append(f"{part} {format_duration(abs(more))} {'more' if more > 0 else 'less'}")
    if before.peak_bytes and after.peak_bytes:
        more = after.peak_bytes - before.peak_bytes
        if abs(more) > SMALLEST_CHANGE * before.peak_bytes:
            texts.append(f"peak {format_bytes(abs(more))} {'more' if more > 0 else 'less'}")
    return ", ".join(texts) or "nothing of the step or the peak changed much"


# Text -------------------------------------------------------------------------------------------------------------


def change_text(settings: Sequence[str], before: Configuration, after: Configuration) -> str:
    """`precision fp32 -> bf16, micro_batch_size 4 -> 8`."""
    old, new = before.values, after.values
    return ", ".join(f"{name} {word(old[name])} -> {word(new[name])}" for name in settings)


def verdict(gain: Interval | None) -> str:
    """Whether a change won, lost, or made no difference beyond noise."""
    if gain is None:
        return "cannot be compared"
    if gain.low > 1:
        return "won"
    return "lost" if gain.high < 1 else "no difference beyond noise"
