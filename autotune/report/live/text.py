"""The words of what a search shows while it runs."""

from autotune.core.configuration import RANKS, Configuration, word
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_seconds
from autotune.report.markdown import one_line
from autotune.report.summary import SHORT, speed_text
from autotune.study.plan import Progress

_OUTCOMES = {
    "out_of_memory": "no memory",
    "non_finite_loss": "NaN loss",
    "timed_out": "timed out",
    "misconfigured": "not as asked",
}

HEADER = ("#", "configuration", "outcome", "samples/s", "peak")


def cells(trial: Trial, best: Trial | None, baseline: Trial, whole: bool = False) -> tuple[str, str, str, str, str]:
    """A trial's row under HEADER: the best one has a star, a number in warning a question mark."""
    is_best = best is not None and trial.number == best.number
    return (
        f"{trial.number}{'*' if is_best else ' '}",
        short(trial, baseline, whole),
        outcome_word(trial),
        f"{speed_text(trial)} {'?' if trial.final.warnings else ' '}",
        format_bytes(trial.peak_bytes),
    )


def short(trial: Trial, baseline: Trial, whole: bool = False) -> str:
    """The configuration, as far as it is not the baseline's, without the names that its values make plain.

    whole: the baseline's own settings too, where they are few; the report tells them all.
    """
    configuration = trial.configuration
    words = [f"{configuration.micro_batch_size}x{configuration.gradient_accumulation_steps}"]
    if configuration.data_parallel_size > 1:
        words[0] += f"x{configuration.data_parallel_size}"
    known = baseline.configuration.values
    if baseline.number == trial.number:
        words.append("baseline")
        known = {} if whole and len(configuration.settings) <= SHORT else known
    for name, value in configuration.settings:
        if name == RANKS or known.get(name) == value:
            continue
        plain = name in ("precision", "optimizer")
        words.append(
            str(value)
            if plain
            else f"{name.replace('checkpointing', 'ckpt').replace('pin_memory', 'pin')}={word(value)}"
        )
    return " ".join(words)


def outcome_word(trial: Trial) -> str:
    """How a trial ended, in at most 12 letters."""
    if trial.feasible:
        return "confirmed" if trial.confirmed else "ok (early)" if trial.final.ended_early else "ok"
    return _OUTCOMES.get(trial.final.outcome.value, trial.final.outcome.value)


def baseline_of(progress: Progress, trial: Trial | None = None) -> Configuration | None:
    """The baseline's configuration, to tell others by what differs; None for the baseline itself."""
    first = progress.trials[0] if progress.trials else None
    return first.configuration if first and (trial is None or trial.number != first.number) else None


def doing_text(progress: Progress, seconds: float) -> str:
    """What runs now and for how long: `probing 3 (12 s): 16 x 1, precision bf16`; empty where nothing does."""
    since = f"({format_seconds(seconds)})"
    if progress.kind in ("probing", "confirming") and progress.configuration is not None:
        base = baseline_of(progress)
        first = progress.trials[0].number if progress.trials else 0
        told = "the baseline" if progress.number == first else progress.configuration.unlike(base)
        return one_line(f"{progress.kind} {progress.number} {since}: {told}")
    if progress.kind in ("preparing", "finishing"):
        return one_line(f"{progress.message} {since}")
    return ""


def best_text(progress: Progress) -> str:
    """`best so far 41.2 ± 0.3 samples/s (trial 2), 1.62x the baseline`; empty where nothing fits yet."""
    best = progress.best
    if best is None:
        return ""
    told = f"best so far {speed_text(best)} samples/s (trial {best.number})"
    if progress.speedup is None or best.number == progress.trials[0].number:
        return told
    return f"{told}, {progress.speedup:.2f}x the baseline"


def left_text(progress: Progress) -> str:
    """How many probes are left, and how much time where that is limited."""
    time_left = f", {format_seconds(progress.seconds_left)} left" if progress.seconds_left is not None else ""
    return f"{progress.probes_left} probe(s) left{time_left}"


def bound_text(progress: Progress) -> str:
    """By how much the best may still be beaten, as far as the sampler knows; else empty."""
    if progress.max_gain_if_fits is None:
        return ""
    return f"what is untried could beat the best by at most {max(0.0, progress.max_gain_if_fits):.0%}"
