"""Parts of the memory at its peak, by the estimate, and the measured peak: baseline and best."""

from autotune.core import Outcome, Trial
from autotune.core.units import format_bytes
from autotune.report.figures.canvas import Drawing
from autotune.report.figures.rows import listed, memory_unit, special_trials, stacked, trial_name
from autotune.report.trial_text import is_same
from autotune.study.result import SearchResult


def draw(result: SearchResult) -> Drawing | None:
    """Estimated bytes by kind, a bar a trial, the measured peak as a line; None where nothing was traced."""
    trials = [trial for trial in special_trials(result) if trial.number in result.estimated_peaks]
    if not trials:
        return None
    peaks = [result.estimated_peaks[trial.number] for trial in trials]
    measured = [0 if _is_lost(trial) else trial.peak_bytes or 0 for trial in trials]
    name, unit = memory_unit([*measured, *(peak.device_bytes for peak in peaks)])
    parts = [
        {kind.replace("_", " "): size / unit for kind, size in peak.split.to_dict().items()}
        | {"unused by the allocator": max(0, peak.device_bytes - peak.split.total) / unit}
        for peak in peaks
    ]
    figure = stacked(
        [trial_name(result, trial) for trial in trials],
        parts,
        f"estimated {name}",
        [format_bytes(peak.device_bytes) for peak in peaks],
        [size / unit for size in measured],
    )
    sides = " ".join(_side(result, trial) for trial in trials)
    caption = f"The parts are estimated from the model's traced step, not measured. {sides}"
    return Drawing("memory-parts", "What memory is for", caption, figure)


def _side(result: SearchResult, trial: Trial) -> str:
    roles = {"the baseline": result.baseline_trial, "the best": result.best_trial}
    role = listed(name for name, other in roles.items() if is_same(trial, other))
    peak = f"measured peak {format_bytes(trial.peak_bytes)}" if trial.peak_bytes else "no peak was measured"
    measured = "it ran out of memory" if _is_lost(trial) else peak
    estimated = format_bytes(result.estimated_peaks[trial.number].device_bytes)
    return f"{role[0].upper()}{role[1:]}: estimated peak {estimated}, {measured}."


def _is_lost(trial: Trial) -> bool:
    """Whether it ran out of memory: what it had reached by then is no peak."""
    return trial.final.outcome is Outcome.OUT_OF_MEMORY
