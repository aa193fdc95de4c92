"""Error of a search without a result: its cause by the trials' outcomes, and advice."""

from collections.abc import Sequence

from autotune.core.errors import AutotuneError, NothingFits, SearchFailed
from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes

ADVICE = {
    Outcome.TIMED_OUT: "Raise --probe-timeout, or make a step shorter: --sequence-length, --global-batch-size.",
    Outcome.NON_FINITE_LOSS: "Check data and learning rate",
    Outcome.UNSUPPORTED: "Change that in your training arguments, or set another value with --fix NAME=VALUE.",
    Outcome.MISCONFIGURED: "Remove what changes it in your model, data or Trainer, or leave it out of what is tried.",
    Outcome.OUT_OF_MEMORY: (
        "Use fewer workers (--fix workers=0), or give them more shared memory and search again with --fresh."
    ),
    Outcome.CRASHED: "Fix it and search again with --fresh; the output is in its log.txt in the report folder.",
}
"""Outcome of the trial that shows the cause -> advice, other than for the device's memory."""

FITTED = (Outcome.TIMED_OUT, Outcome.NON_FINITE_LOSS)
"""Outcomes of trials that had enough memory."""


def why_no_answer(trials: Sequence[Trial], allowed_bytes: int) -> AutotuneError:
    """The error with the reason why none of these trials is a result; not raised here.

    NothingFits if the baseline ran out of memory and no other trial fitted. Else SearchFailed with the outcome of the
    baseline or, if that ran out of memory, of the first trial that fitted and did not complete.
    """
    if not trials:
        return SearchFailed("No trial was measured.", "Run the same command again.")
    if reasons := [trial.disqualified_reason for trial in trials if trial.disqualified_reason]:
        return SearchFailed(f"No trial may win: {reasons[0]}.", "Add --allow-loss-difference to accept that.")
    lacking = [trial for trial in trials if trial.lacked_memory]
    cause = next((trial for trial in trials if trial.final.outcome in FITTED), trials[0])
    if trials[0] in lacking and cause is trials[0]:
        return NothingFits(
            f"Nothing fits into {format_bytes(allowed_bytes)}: {smallest_need(trials)}.",
            "Raise --memory-limit, lower --headroom, or shorten --sequence-length.",
        )
    if trials[0] not in lacking:
        cause = trials[0]
    whose = "your own settings" if cause.number == 0 else f"trial {cause.number} ({cause.configuration})"
    ended = f"{cause.final.outcome.value.replace('_', ' ')}: {cause.final.reason.rstrip('.')}"
    others = f"; {len(lacking)} ran out of memory" if lacking else ""
    return SearchFailed(
        f"None of {counted(len(trials), 'trial')} completed{others}; {whose}: {ended}.",
        _advice(cause),
    )


def no_answer_words(trials: Sequence[Trial], allowed_bytes: int) -> str:
    """Words of a table's cell instead of the speed of the best of these trials, if none is a result."""
    if not trials:
        return "not measured"
    if any(trial.disqualified_reason for trial in trials):
        return "none may win"
    return "nothing fits" if isinstance(why_no_answer(trials, allowed_bytes), NothingFits) else "none completed"


def _advice(cause: Trial) -> str:
    advice = ADVICE.get(cause.final.outcome, "")
    if cause.final.outcome is Outcome.NON_FINITE_LOSS:
        precision = cause.final.settings.get("precision") or cause.configuration.values.get("precision")
        advice += "." if precision == "fp32" else ", or use --fix precision=fp32."
    return advice


def smallest_need(trials: Sequence[Trial]) -> str:
    """Least memory that any of the trials needed, all of which ran out of it, in words; else the reason of the first."""
    lacking = [trial for trial in trials if trial.lacked_memory]
    needs = {trial.number: need for trial in lacking if (need := _needed_bytes(trial))}
    if not needs:
        return f"{lacking[0].final.reason.rstrip('.')} ({lacking[0].configuration})"
    least = min((trial for trial in lacking if trial.number in needs), key=lambda trial: needs[trial.number])
    return (
        f"the smallest of {counted(len(trials), 'trial')} ({least.configuration}) needed at least "
        f"{format_bytes(max(needs[least.number], least.final.allowed_bytes or 0))}"
    )


def _needed_bytes(trial: Trial) -> int | None:
    """Bytes that the trial needed; None if it was ended without a word, as the kernel ends a process."""
    final = trial.final
    if final.outcome is Outcome.COMPLETED:
        return final.peak_bytes
    return None if final.held_bytes is None else final.held_bytes + (final.refused_bytes or 0)
