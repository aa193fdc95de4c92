"""Verification of a study: its measured result against a plain training, as data and as a table."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.core import Interval, Measurement, Outcome, Trial
from autotune.core.interval import quotient_of_means
from autotune.core.units import format_bytes, format_duration, format_interval
from autotune.report.markdown import wrapped
from autotune.report.trial_text import interval_fields

DEVICE_FACTS = {
    "sm_clock_mhz": ("SM clock", "{:.0f} MHz"),
    "power_w": ("power", "{:.0f} W"),
    "temperature_c": ("temperature", "{:.0f} °C"),
}
"""Readings of the device that explain a difference in speed: name -> label and format."""


@dataclass(frozen=True)
class Verification:
    """A study's result and a plain training with it.

    promised: the best trial. got: the plain training; of its steps only time, data wait and samples are known, and one that
    did not complete has a reason. notes: limits of the comparison. promised_mfu: share of the GPU's data-sheet peak of the
    best trial; None where unknown.
    """

    promised: Trial
    got: Measurement
    notes: tuple[str, ...] = ()
    promised_mfu: float | None = None

    @property
    def mfu(self) -> float | None:
        """Share of the data-sheet peak of the plain training: the same work at another speed."""
        return self.promised_mfu * (1 + self.difference) if self.promised_mfu and self.difference is not None else None

    def __repr__(self) -> str:
        """One line: both speeds, and whether the result was confirmed."""
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
        """Whether it ran within the allowed memory and, within noise, no slower than promised; None: unknown."""
        if not self.got.feasible:
            return False
        if self.difference is None or not math.isfinite(self.difference.high):
            return None
        return self.difference.high >= 0

    @property
    def sentence(self) -> str:
        """Whether the promise held, and the difference."""
        got, difference = self.got, self.difference
        if not self.completed:
            return f"Not held: {got.outcome.value.replace('_', ' ')}: {got.reason.rstrip('.')}."
        if not got.feasible:
            peak, allowed = format_bytes(got.peak_bytes), format_bytes(got.allowed_bytes)
            return f"Not held: the run reached its memory limit (peak {peak} of {allowed} allowed)."
        if self.held is None or difference is None:
            return "Open: a single timed step has no interval; take more steps."
        change = f"{100 * abs(difference):.1f} % {'faster' if difference >= 0 else 'slower'} than promised"
        noise = f"the interval of ± {50 * (difference.high - difference.low):.1f} %"
        if difference.low <= 0 <= difference.high:
            return f"Held: {change}, inside {noise}."
        return f"{'More than held' if self.held else 'Not held'}: {change}, outside {noise}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints. Speeds are samples / second, peaks bytes, differences shares of the promise."""
        promised = _figures(self.promised.final, self.promised.peak_bytes, self.promised_mfu)
        got = _figures(self.got, self.got.peak_bytes, self.mfu)
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
    """A table for a terminal of 80 columns, whether the promise held, warnings and notes."""
    promised, got = verification.promised, verification.got
    before, after = promised.final.surroundings, got.surroundings
    rows: list[tuple[str, Callable[[Any], str], Any, Any]] = [
        ("samples/s", _speed, promised.samples_per_second, got.samples_per_second),
        ("step time", format_duration, promised.final.step_time_s, got.step_time_s),
        ("peak memory", format_bytes, promised.peak_bytes, got.peak_bytes),
        ("data wait a step", format_duration, promised.final.data_wait_s, got.data_wait_s),
        *([("MFU", "{:.1%}".format, verification.promised_mfu, verification.mfu)] if verification.mfu else []),
        *(
            (label, text.format, before.get(name), after[name])
            for name, (label, text) in DEVICE_FACTS.items()
            if name in after
        ),
    ]
    line = "{:<18}{:>20}{:>20}{:>14}".format
    lines = [line("", "promised", "got", "difference")]
    for label, text, one, other in rows:
        change = _change(one, other)
        cells = ["-" if value is None else text(value) for value in (one, other)]
        lines.append(line(label, *cells, "-" if change is None else f"{100 * change:+.1f} %"))
    remarks = [f"warning of the promise: {warning}" for warning in promised.final.warnings]
    remarks += [f"warning: {warning}" for warning in got.warnings] + [f"note: {note}" for note in verification.notes]
    return [*lines, "", *wrapped(verification.sentence), *(part for remark in remarks for part in wrapped(remark))]


def _speed(speed: Interval | None) -> str:
    return "-" if speed is None else format_interval(speed, speed.low, speed.high)


def _change(promised: float | None, got: float | None) -> float | None:
    """got / promised - 1; None where one is unknown or the first is zero."""
    return got / promised - 1 if promised and got is not None else None


def _figures(measurement: Measurement, peak_bytes: int | None, mfu: float | None) -> dict[str, float | None]:
    return {
        **interval_fields("samples_per_second", measurement.samples_per_second),
        "step_time_s": measurement.step_time_s,
        "peak_bytes": peak_bytes,
        "data_wait_s": measurement.data_wait_s,
        "mfu": mfu,
    }
