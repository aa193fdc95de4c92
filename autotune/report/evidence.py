"""Evidence behind a trial's numbers: parts of a step, memory by stage, losses, evaluation, checkpoint."""

from typing import Any

from autotune.core.loss_curves import Numerics
from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes, format_duration
from autotune.core.warning import ResultWarning, WarningKind
from autotune.space.utilization import Utilization
from autotune.study.result import SearchResult


def evidence_lines(result: SearchResult, best: Trial) -> list[str]:
    """Basis of the best trial's numbers: steps, memory, arithmetic; and the real training that had it."""
    lines = [*measurement_lines(best), *utilization_lines(result.utilizations.get(best.number))]
    return [*lines, *real_run_lines(result)]


def real_run_lines(result: SearchResult) -> list[str]:
    """The last real training with the answer; empty without one."""
    if (run := result.real_run) is None:
        return []
    why = f". Likely: {run.reason}" if run.reason else ""
    return [f"the last real training{f' ({run.date})' if run.date else ''}: {run.text}{why}"]


def measurement_lines(trial: Trial) -> list[str]:
    """Method of the trial's measurement and parts of its step; empty if no step was timed."""
    final = trial.final
    if not final.steps or not final.step_time_s:
        return []
    count = counted(len(trial.confirmations), "further measurement")
    parts = {
        "forward": final.forward_time_s,
        "backward": final.backward_time_s,
        "clipping and optimizer": final.optimizer_step_time_s,
        "waiting for data": final.data_wait_s,
        "Trainer": final.overhead_time_s,
    }
    shares = ", ".join(f"{name} {(seconds or 0.0) / final.step_time_s:.0%}" for name, seconds in parts.items())
    lines = [
        f"{counted(len(final.steps), 'timed step')} of {count if trial.confirmed else 'a single probe'}; no timed step is at "
        "an epoch's end",
        f"a step of {format_duration(final.step_time_s)}: {shares}",
    ]
    if (tokens := final.tokens_per_second) is not None:
        without_padding = final.non_padding_tokens_per_second
        is_padded = without_padding is not None and without_padding < tokens
        padding = f", {without_padding:,.0f} of them without padding" if is_padded else ""
        lines.append(f"{tokens:,.0f} tokens/s{padding}")
    if stage_peaks := trial.measurement.stage_peak_bytes:
        stages = ", ".join(f"{stage} {format_bytes(size)}" for stage, size in stage_peaks.items())
        batches = f" on {trial.measurement.worst_batch}" if trial.measurement.worst_batch else ""
        lines.append(f"memory by stage: {stages} (read over two steps{batches})")
    if final.joules_per_sample is not None:
        lines.append(f"{final.joules_per_sample:.3g} J a sample")
    if any(measured.is_composed for measured in trial.confirmations):
        lines.append("its steps are long: rounds after the first ran few micro-steps of each, as its probe did")
    if trial.confirmations and final.whole_because:
        lines.append(f"its rounds ran all micro-steps of each step: {final.whole_because}")
    if final.skipped_steps:
        lines.append(f"{counted(final.skipped_steps, 'step')} skipped by fp16's loss scaling")
    return lines


def utilization_lines(use: Utilization | None) -> list[str]:
    """Used share of the device's arithmetic, and how it is counted."""
    if use is None or not use.text:
        return []
    source = f"; peak: {use.card.source}" if use.mfu is not None and use.card else ""
    return [
        f"{use.text}: {use.sample_flops:.4g} FLOPs a sample, forward and backward, attention counted whole, "
        f"nothing computed again{source}"
    ]


def numerics_lines(numerics: Numerics | None, trial: Trial | None) -> list[str]:
    """Comparison of the trial's learning with the reference's over the first steps of the rounds that both ran."""
    if numerics is None or trial is None:
        return []
    if reason := numerics.why_unchecked(trial.number):
        return [f"not compared with {numerics.reference}'s: {reason}"]
    if flag := numerics.flag(trial.number):
        text = f"differ from {numerics.reference}'s: {flag} ({numerics.weights})"
    elif (difference := numerics.difference(trial.number)) is None:
        return []
    elif difference.is_sensitive:
        text = (
            f"as {numerics.reference}'s over {difference.steps} steps of {counted(difference.rounds, 'round')}: they differ by "
            f"{difference.loss:+.2g} after falling by {difference.learned:.3g} ({numerics.weights})"
        )
    else:
        text = (
            f"not told from {numerics.reference}'s over {difference.steps} steps of "
            f"{counted(difference.rounds, 'round')}, in which the loss fell too little to show a training that learns nothing "
            f"({numerics.weights})"
        )
    return [text, *map(str, numerics.notes)]


def loss_fields(result: SearchResult) -> dict[str, Any] | None:
    """The comparison of the answer's losses for JSON: with what, by how much they differ, and in words, or None."""
    best, numerics = result.best_trial, result.numerics
    if best is None or numerics is None:
        return None
    difference = numerics.difference(best.number)
    return {
        "reference": numerics.reference,
        "is_flagged": bool(numerics.flag(best.number)),
        **(difference.to_dict() if difference else {}),
        "text": numerics_lines(numerics, best),
        "notes": [note.to_dict() for note in numerics.notes],
    }


def loss_warning(result: SearchResult) -> ResultWarning | None:
    """The warning that the answer does not learn as float32 does, or that its losses were not compared.

    The baseline, which is what the user has, is never warned of as not compared.
    """
    best, numerics = result.best_trial, result.numerics
    if best is None:
        return None
    if numerics is not None:
        problem = numerics.flag(best.number) or (best.number and numerics.why_unchecked(best.number))
        return ResultWarning(WarningKind.LOSSES, detail=numerics_lines(numerics, best)[0]) if problem else None
    why = "" if best.confirmations else "nothing was measured again"
    why = why if result.complete else "the search did not come to its end"
    return ResultWarning(WarningKind.LOSSES, detail=f"not compared with fp32's: {why}") if why and best.number else None
