"""Verification: what a study promised against what a plain training of its answer got, as data and as a table."""

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.core.interval import Interval, quotient_of_means
from autotune.core.measurement import Measurement, Outcome
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_duration, format_interval

WIDTH = 80

DEVICE_FACTS = {"sm_clock_mhz": ("SM clock", "MHz"), "power_w": ("power", "W"), "temperature_c": ("temperature", "°C")}
"""What of the surroundings explains a difference in speed: name -> label and unit."""


@dataclass(frozen=True)
class Verification:
    """What a study promised, and what a plain training of its answer got.

    promised: the recommended trial. got: the plain training; of its steps only time, data wait and samples are known,
    and one that did not complete says why. notes: what to bear in mind when comparing the two. promised_mfu: share of the card's
    data-sheet peak that was promised; None where unknown.
    """

    promised: Trial
    got: Measurement
    notes: tuple[str, ...] = ()
    promised_mfu: float | None = None

    @property
    def mfu(self) -> float | None:
        """Share of that peak that was got: the same work at another speed."""
        promised, got = self.promised.samples_per_second, self.got.samples_per_second
        return self.promised_mfu * got.value / promised.value if self.promised_mfu and promised and got else None

    def __repr__(self) -> str:
        """One line: speed got and promised, and whether that was held."""
        speeds = f"{_speed(self.got.samples_per_second)} samples/s, promised {_speed(self.promised.samples_per_second)}"
        return f"<Verification of trial {self.promised.number}: {speeds}. {self.sentence}>"

    @property
    def completed(self) -> bool:
        return self.got.outcome is Outcome.COMPLETED

    @property
    def difference(self) -> Interval | None:
        """Speed got / promised - 1, with its 95 % interval; None where one of them is unknown."""
        promised, got = self.promised.samples_per_second, self.got.samples_per_second
        if not promised or not got:
            return None
        ratio = quotient_of_means(got, promised)
        return Interval(ratio - 1, ratio.low - 1, ratio.high - 1)

    @property
    def held(self) -> bool | None:
        """Whether it ran within the memory allowed and, but for noise, no slower than promised; None: cannot be told."""
        if not self.got.feasible:
            return False
        if self.difference is None or not math.isfinite(self.difference.high):
            return None
        return self.difference.high >= 0

    @property
    def sentence(self) -> str:
        """Whether the promise held, and by how much."""
        got, difference = self.got, self.difference
        if not self.completed:
            return f"Not held: {got.outcome.value.replace('_', ' ')}: {got.reason.rstrip('.')}."
        if not got.feasible:
            peak, allowed = format_bytes(got.peak_bytes), format_bytes(got.allowed_bytes)
            return f"Not held: the run went to the limit of its memory (peak {peak} of {allowed} allowed)."
        if self.held is None or difference is None:
            return "Open: a single timed step has no interval; take more steps."
        change = f"{100 * abs(difference):.1f} % {'faster' if difference >= 0 else 'slower'} than promised"
        noise = f"the interval of ± {50 * (difference.high - difference.low):.1f} %"
        if difference.low <= 0 <= difference.high:
            return f"Held: {change}, inside {noise}."
        return f"{'More than held' if self.held else 'Not held'}: {change}, outside {noise}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints. Speeds are samples / second, peaks bytes, differences shares of the promise."""
        promised = _figures(self.promised.final, self.promised.peak_bytes) | {"mfu": self.promised_mfu}
        got = _figures(self.got, self.got.peak_bytes) | {"mfu": self.mfu}
        compared = [name for name in promised if not name.endswith(("_low", "_high"))]
        return {
            "sentence": self.sentence,
            "held": self.held,
            "outcome": self.got.outcome.value,
            "reason": self.got.reason,
            "trial": self.promised.number,
            "configuration": self.promised.configuration.to_dict(),
            "promised": promised,
            "got": got,
            "difference": {name: _change(promised[name], got[name]) for name in compared},
            "timed_steps": len(self.got.steps),
            "untimed_steps": self.got.untimed_steps,
            "seconds": self.got.probe_seconds,
            "surroundings": dict(self.got.surroundings),
            "surroundings_of_the_promise": dict(self.promised.final.surroundings),
            "warnings": list(self.got.warnings),
            "warnings_of_the_promise": list(self.promised.final.warnings),
            "notes": list(self.notes),
        }


def verification_lines(verification: Verification) -> list[str]:
    """Promised against got for a terminal of 80 columns: a small table, whether it held, warnings and notes."""
    promised, got = verification.promised, verification.got
    rows: list[tuple[str, Callable[[Any], str], Any, Any]] = [
        ("samples/s", _speed, promised.samples_per_second, got.samples_per_second),
        ("step time", format_duration, promised.final.step_time_s, got.step_time_s),
        ("peak memory", format_bytes, promised.peak_bytes, got.peak_bytes),
        ("data wait a step", format_duration, promised.final.data_wait_s, got.data_wait_s),
        *([("MFU", "{:.1%}".format, verification.promised_mfu, verification.mfu)] if verification.mfu else []),
    ]
    rows += [
        (label, partial(_with_unit, unit=unit), promised.final.surroundings.get(name), got.surroundings.get(name))
        for name, (label, unit) in DEVICE_FACTS.items()
        if name in got.surroundings
    ]
    lines = [_row("", "promised", "got", "difference")]
    lines += [_row(name, said(one), said(other), _percent(_change(one, other))) for name, said, one, other in rows]
    lines += ["", *wrapped(verification.sentence).splitlines()]
    told = [f"warning of the promise: {warning}" for warning in promised.final.warnings]
    told += [f"warning: {warning}" for warning in got.warnings] + [f"note: {note}" for note in verification.notes]
    return lines + [line for text in told for line in wrapped(text).splitlines()]


def _row(*cells: str) -> str:
    return "{:<18}{:>20}{:>20}{:>14}".format(*cells)


def wrapped(text: str) -> str:
    """A sentence for a terminal of 80 columns."""
    return textwrap.fill(text, WIDTH, subsequent_indent="  ")


def _speed(speed: Any) -> str:
    return "-" if speed is None else format_interval(speed, speed.low, speed.high)


def _with_unit(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"


def _change(promised: float | None, got: float | None) -> float | None:
    """got / promised - 1; None where one is unknown or nothing was promised."""
    return got / promised - 1 if promised and got is not None else None


def _percent(change: float | None) -> str:
    return "-" if change is None else f"{100 * change:+.1f} %"


def _figures(measurement: Measurement, peak_bytes: int | None) -> dict[str, float | None]:
    speed = measurement.samples_per_second
    return {
        "samples_per_second": speed and speed.value,
        "samples_per_second_low": speed and speed.low,
        # JSON has no infinity: one step alone has no upper bound.
        "samples_per_second_high": speed.high if speed and math.isfinite(speed.high) else None,
        "step_time_s": measurement.step_time_s,
        "peak_bytes": peak_bytes,
        "data_wait_s": measurement.data_wait_s,
    }
