"""Reasons: what bounds a training, what a change did to its step and its memory, and what was tried in place of a value."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.commands.explain.path import gain_of
from autotune.core.configuration import Configuration, Value, word
from autotune.core.interval import Interval
from autotune.core.measurement import Measurement, Outcome
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_duration
from autotune.space.dominance import implied_by
from autotune.space.search_space import RuledOut
from autotune.space.settings import MICRO, SETTINGS
from autotune.space.settings.micro_batch_size import divisors
from autotune.space.utilization import Utilization

TOLD = 0.02
"""Changes of a part by less than this share of the step, and of the peak by less of the peak, are not told as a reason."""


@dataclass(frozen=True)
class Alternative:
    """A value that the answer does not have, and what became of it.

    trial: the number of the best trial with it, None where it was never probed. times_as_fast: that trial's speed /
    the answer's, with its interval; None where none with it ran. why: what else there is to say.
    """

    setting: str
    value: Value
    trial: int | None
    times_as_fast: Interval | None
    why: str = ""


# What bounds it ---------------------------------------------------------------------------------------------------


def bound(of: Trial, trials: Sequence[Trial], utilization: Utilization | None = None) -> tuple[str, str]:
    """(`input`, `memory`, `compute`, `optimizer` or `overhead`, a sentence why); empty where no step was timed.

    Input-bound as `Measurement.input_bound` says; memory-bound where a value that needs more memory ran out of it in
    the trials; else by the part of the step that takes most. utilization: where it is known.
    """
    final = of.final
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
    if crowded := _kept_out(of, trials):
        return "memory", f"memory-bound: {crowded} did not fit{f' ({free})' if free else ''}; {busy}"
    most = max(("micro-steps", "optimizer", "Trainer"), key=lambda part: shares[part])
    kind = {"micro-steps": "compute", "optimizer": "optimizer", "Trainer": "overhead"}[most]
    return kind, f"{kind}-bound: {busy}{f'; {free}' if free else ''}"


def _kept_out(of: Trial, trials: Sequence[Trial]) -> str:
    """What needs more memory than this trial, by one setting, and ran out of it: `micro_batch_size 16 (trial 5)`."""
    mine = of.configuration
    failed = [one for one in trials if one.final.outcome is Outcome.OUT_OF_MEMORY and not one.final.observed_warnings]
    for name, own in mine.values.items():
        setting = SETTINGS[name]
        known = dict.fromkeys(one.configuration.values[name] for one in trials if name in one.configuration.values)
        for value in divisors(mine.global_batch_size) if name == MICRO else known:
            if value == own or "memory" not in setting.changes or not setting.needs_at_least_as_much(value, own):
                continue
            if (settling := implied_by(with_value(mine, name, value), failed)) is not None:
                return f"{name} {value} (trial {settling.number})"
    return ""


def with_value(configuration: Configuration, name: str, value: Value) -> Configuration:
    """The configuration with another value of one setting; accumulation follows the micro-batch size."""
    values = {**configuration.values, name: value}
    micro = int(values.pop(MICRO))
    return Configuration.exact(configuration.global_batch_size, micro, values, configuration.data_parallel_size)


# What a step and the memory consist of ----------------------------------------------------------------------------


def parts(measurement: Measurement) -> dict[str, float]:
    """Seconds of a step by part; they add up to the step's."""
    step = measurement.step_time_s or 0.0
    micro = (measurement.micro_step_time_s or 0.0) * measurement.accumulation_steps
    optimizer, wait = measurement.optimizer_step_time_s or 0.0, measurement.data_wait_s or 0.0
    known = {"micro-steps": micro, "optimizer": optimizer, "data wait": wait}
    return known | {"Trainer": max(0.0, step - sum(known.values()))}


def step_split(measurement: Measurement) -> dict[str, float | None]:
    """Mean seconds of a step and its parts as they were timed; first, middle and last micro-step without the optimizer.

    None where nothing was timed, and for a first or middle micro-step that there is not.
    """
    steps = measurement.composed_steps
    run = measurement.accumulation_steps_run

    def mean(name: str, least: int) -> float | None:
        return sum(getattr(one, name) for one in steps) / len(steps) if steps and run >= least else None

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
    """What a change did: `micro-steps 30 % shorter, peak 20 MiB less`; the part that changed the step most comes first.

    Micro-steps are those of one step together, so that those of different sizes compare.
    """
    told = _of_the_step(before.final, after.final)
    peaks = (before.peak_bytes, after.peak_bytes)
    if all(peaks) and abs(more := (peaks[1] or 0) - (peaks[0] or 0)) > TOLD * (peaks[0] or 0):
        told.append(f"peak {format_bytes(abs(more))} {'more' if more > 0 else 'less'}")
    return ", ".join(told) or "nothing of the step or the peak changed much"


def _of_the_step(before: Measurement, after: Measurement) -> list[str]:
    old, new = parts(before), parts(after)
    whole = max(before.step_time_s or 0.0, 1e-12)
    moved = sorted(old, key=lambda part: abs(new[part] - old[part]), reverse=True)
    return [_changed(part, old[part], new[part]) for part in moved if abs(new[part] - old[part]) > TOLD * whole]


def _changed(part: str, old: float, new: float) -> str:
    if part == "micro-steps" and old > 0:
        return f"{part} {abs(new / old - 1):.0%} {'longer' if new > old else 'shorter'}"
    return f"{part} {format_duration(abs(new - old))} {'more' if new > old else 'less'}"


# What else was tried ----------------------------------------------------------------------------------------------


def alternatives(
    answer: Trial, trials: Sequence[Trial], ruled_out: Sequence[RuledOut], objective: str
) -> tuple[Alternative, ...]:
    """Every value that the answer does not have, by setting, with the best trial that had it."""
    found: list[Alternative] = []
    for name, own in answer.configuration.values.items():
        held = [one for one in trials if name in one.configuration.values]
        values = dict.fromkeys(one.configuration.values[name] for one in held)
        found += [_alternative(name, value, answer, held, objective) for value in values if value != own]
        told = [one for one in ruled_out if one.setting == name and one.value not in values and one.value != own]
        found += [Alternative(name, one.value, None, None, f"ruled out: {one.reason}") for one in told]
    return tuple(found)


def _alternative(name: str, value: Value, answer: Trial, trials: Sequence[Trial], objective: str) -> Alternative:
    those = [one for one in trials if one.configuration.values[name] == value]
    # Beside a confirmed answer a probe that ended early still tells how far behind it was.
    speeds = {one.number: gain for one in those if (gain := gain_of(one, answer, objective)) is not None}
    if speeds:
        number = max(speeds, key=lambda one: speeds[one])
        best = next(one for one in those if one.number == number)
        return Alternative(name, value, number, speeds[number], best.disqualified_reason)
    ends = dict.fromkeys(one.final.outcome.value.replace("_", " ") for one in those)
    return Alternative(name, value, those[0].number, None, f"{', '.join(ends)} in {len(those)} trial(s)")


# In words ---------------------------------------------------------------------------------------------------------


def change_text(settings: Sequence[str], before: Configuration, after: Configuration) -> str:
    """`precision fp32 -> bf16, micro_batch_size 4 -> 8`."""
    old, new = before.values, after.values
    return ", ".join(f"{name} {word(old[name])} -> {word(new[name])}" for name in settings)


def gain_text(gain: Interval | None) -> str:
    """`1.31x (1.22 to 1.40)`, or a dash; an interval without an end is said so."""
    if gain is None:
        return "-"
    high = f"{gain.high:.2f}" if gain.high < 1e6 else "inf"
    return f"{float(gain):.2f}x ({gain.low:.2f} to {high})"


def verdict(gain: Interval | None) -> str:
    """Whether a change won, lost, or did nothing that noise does not cover."""
    if gain is None:
        return "cannot be compared"
    if gain.low > 1:
        return "won"
    return "lost" if gain.high < 1 else "no difference beyond noise"
