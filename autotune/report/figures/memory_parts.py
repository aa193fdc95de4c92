"""What memory is for at its peak, by the estimate, beside the measured peak: baseline and best."""

from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.core.units import format_bytes
from autotune.report.figures.canvas import Drawing
from autotune.report.figures.rows import stacked
from autotune.report.figures.words import listed, memory_unit, told
from autotune.study.result import SearchResult


def draw(result: SearchResult) -> Drawing | None:
    """Estimated bytes by what they are for, a bar a trial, the measured peak as a line; None where nothing was traced."""
    known = [
        one
        for one in (result.baseline_trial, result.best_trial)
        if one is not None and one.number in result.estimated_peaks
    ]
    rows = list({one.number: one for one in known}.values())
    if not rows:
        return None
    peaks = [result.estimated_peaks[one.number] for one in rows]
    measured = [0 if _lost(one) else one.peak_bytes or 0 for one in rows]
    name, unit = memory_unit([*measured, *(one.device_bytes for one in peaks)])
    parts = [{part.replace("_", " "): size / unit for part, size in one.split.to_dict().items()} for one in peaks]
    # What the allocator holds and does not use is nobody's part.
    for part, peak in zip(parts, peaks, strict=True):
        part["unused by the allocator"] = max(0, peak.device_bytes - peak.split.total) / unit
    ends = [format_bytes(one.device_bytes) for one in peaks]
    marks = [one / unit for one in measured]
    figure = stacked([told(result, one) for one in rows], parts, f"estimated {name}", ends, marks)
    said = "The parts are estimated from the model's traced step, not measured. "
    said += " ".join(_sides(result, one) for one in rows)
    return Drawing("memory-parts", "What memory is for", said, figure)


def _sides(result: SearchResult, trial: Trial) -> str:
    roles = {"the baseline": result.baseline_trial, "the best": result.best_trial}
    who = listed(role for role, one in roles.items() if one is not None and one.number == trial.number)
    known = f"measured peak {format_bytes(trial.peak_bytes)}" if trial.peak_bytes else "no peak was measured"
    measured = "it ran out of memory" if _lost(trial) else known
    estimated = format_bytes(result.estimated_peaks[trial.number].device_bytes)
    return f"{who[0].upper()}{who[1:]}: estimated peak {estimated}, {measured}."


def _lost(trial: Trial) -> bool:
    """Whether it ran out of memory: what it had reached by then is no peak."""
    return trial.final.outcome is Outcome.OUT_OF_MEMORY
