"""Texts of every display of a running search: how far it is, its trials by speed, and what runs now."""

import math
import time

from autotune.core import Configuration, Outcome, Trial
from autotune.core.prospect import more_to_gain
from autotune.core.units import format_bytes, format_seconds
from autotune.judge.standing import Standing
from autotune.report.markdown import one_line
from autotune.report.trial_text import NOT_PROVEN, is_same, short_words, speed_text
from autotune.study.plan import Progress, ProgressKind

ROWS = 12
"""Trials that are shown while the search runs."""

HEADER = ("", "configuration", "samples/s", "speed-up", "peak")

PHASES = ("prepare", "search", "check")

BEGINNING = Progress(ProgressKind.PREPARING, Standing(), message="reading device, model and data")
"""Progress before the first event."""

FAILURES = {
    Outcome.COMPLETED: "over the limit",
    Outcome.NON_FINITE_LOSS: "loss is NaN",
    Outcome.UNSUPPORTED: "cannot run",
    Outcome.MISCONFIGURED: "was changed",
}
"""Outcome of a trial without a result -> words; of the others their own name."""


class LiveView:
    """A display of a running search: its last progress, when that came, and what Ctrl-C was answered."""

    def __init__(self) -> None:
        self._last = BEGINNING
        self._notice = ""
        self._begun = self._since = time.monotonic()

    def _take(self, progress: Progress) -> None:
        if progress.kind is ProgressKind.STOPPING:
            self._notice = progress.message
        else:
            self._last, self._since = progress, time.monotonic()

    def _elapsed(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._begun


# Trials -------------------------------------------------------------------------------------------------------------


def ranked(progress: Progress, rows: int) -> list[Trial]:
    """Rows of trials: the best so far, then by speed, and last what has no result; the baseline is always among them."""
    trials = progress.trials

    def rank(trial: Trial) -> tuple[bool, bool, float]:
        return not is_same(trial, progress.best), not trial.feasible, -float(trial.samples_per_second or 0.0)

    order = sorted(trials, key=rank)
    first = order[:rows]
    return first if trials[0] in first else [*first[:-1], trials[0]]


def cells(trial: Trial, progress: Progress, sure: str = "") -> tuple[str, str, str, str, str]:
    """A trial's row under HEADER.

    A star for the best one, a cross for what cannot win, `?` after a number with a warning and for a ratio that noise hides.
    sure: after a number without a warning.
    """
    baseline = progress.trials[0]
    mark = "*" if is_same(trial, progress.best) else "x" if trial.disqualified_reason else ""
    if not trial.feasible:
        return mark, short(trial.configuration, baseline), failure(trial), "", ""
    speed = f"{speed_text(trial)}{' ?' if trial.final.warnings else sure}"
    return mark, short(trial.configuration, baseline), speed, _ratio(trial, progress), format_bytes(trial.peak_bytes)


def is_uncertain(trial: Trial, progress: Progress) -> bool:
    """True if the trial's row has a `?`."""
    return trial.feasible and (bool(trial.final.warnings) or _ratio(trial, progress) == "?")


def _ratio(trial: Trial, progress: Progress) -> str:
    """`1.62x`, `?`, or nothing if there is nothing to compare with."""
    if progress.standing.compared is None:
        return ""
    gain = progress.speedup_of(trial)
    return "?" if gain is None else f"{gain:.2f}x"


def short(configuration: Configuration, baseline: Trial | None) -> str:
    """`8x1 bf16 2 workers`: sizes, precision, and what else differs from the baseline, which is `8x1 fp32 (baseline)`."""
    before = baseline.configuration if baseline else None
    words = [words.replace(" ", "\xa0") for words in short_words(configuration, before)]  # kept together by `fitted`
    return " ".join([*words, *(["(baseline)"] if configuration == (before or configuration) else [])])


def failure(trial: Trial) -> str:
    """Reason why a trial has no result, in at most 14 characters."""
    outcome = trial.final.outcome
    return FAILURES.get(outcome, outcome.value.replace("_", " "))


def fitted(text: str, width: int) -> str:
    """The first words of the text that fit into this number of characters."""
    shown = text if len(text) <= width else f"{text[: width - 1].rpartition(' ')[0]} …"
    return shown.replace("\xa0", " ")


# Progress -----------------------------------------------------------------------------------------------------------


def phase_of(progress: Progress) -> int:
    """Place in PHASES: measuring the baseline is part of preparing."""
    if progress.kind in (ProgressKind.FINISHING, ProgressKind.DONE):
        return 2
    return int(len(progress.trials) > 1 or (progress.kind is ProgressKind.PROBING and len(progress.trials) == 1))


def phases_text(progress: Progress, width: int) -> str:
    """`prepare ✓  search ████░░░░  check`; width: of the bar."""
    now, known = phase_of(progress), len(progress.trials)
    full = round(width * known / max(1, known + progress.probes_left))
    doing = f" {'█' * full}{'░' * (width - full)}" if now == 1 else " …"
    return "  ".join(
        f"{name}{' ✓' if place < now else doing if place == now else ''}" for place, name in enumerate(PHASES)
    )


def count_text(progress: Progress, elapsed_s: float) -> str:
    """`4 of 20   1:24`."""
    known = len(progress.trials)
    minutes, seconds = divmod(round(elapsed_s), 60)
    clock = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"
    return f"{known} of {known + progress.probes_left}   {clock}" if known else clock


def to_go_text(progress: Progress, since_s: float = 0.0) -> str:
    """`about 6 min to go`; empty if it is unknown. since_s: seconds since that was estimated."""
    if progress.seconds_to_go is None or progress.kind is ProgressKind.DONE:
        return ""
    left = progress.seconds_to_go - since_s
    if left < 0:
        return "longer than expected"
    if left < 55:
        return f"about {math.ceil(left / 10) * 10 or 10} s to go"
    return f"about {format_seconds(60 * round(left / 60)).replace(' 0 s', '')} to go"


def now_text(progress: Progress) -> str:
    """Job that runs now, and its reason: `measured again, to prove the speed-up: 4x2 bf16 adafactor`."""
    if progress.kind is ProgressKind.DONE:
        return "writing the report"
    if progress.kind in (ProgressKind.TRIAL, ProgressKind.CONFIRMED, ProgressKind.STOPPING):
        return progress.message or "choosing what is next"
    baseline = progress.trials[0] if progress.trials else None
    parts = [progress.message, short(progress.configuration, baseline) if progress.configuration else ""]
    return one_line(": ".join(filter(None, parts)))


def gain_text(progress: Progress) -> str:
    """Share by which something new may still beat the best, as far as the sampler knows.

    Empty if the search is over, or measures something again.
    """
    is_over = phase_of(progress) > 1 or progress.kind is ProgressKind.CONFIRMING
    return "" if progress.max_gain is None or is_over else more_to_gain(progress.max_gain)


def lead_words(progress: Progress) -> tuple[str, str]:
    """Leading trial and its numbers; nothing while only the user's settings are known.

    `best so far` if that is proven, else `fastest so far, not proven`, and never one slower than the user's settings.
    """
    best, fastest = progress.best, progress.fastest
    trial = best or fastest
    if trial is None or len(progress.trials) < 2:
        return "", ""
    gain = progress.speedup_of(trial)
    compared = progress.standing.compared
    rival = "what fits with the least change" if compared and compared.number else "the baseline"
    if is_same(trial, compared) or (gain is not None and round(gain, 2) < 1):
        return f"nothing faster than {rival} so far", ""
    times = "" if gain is None else f", {gain:.2f}x {rival}"
    title = "best so far" if best else f"fastest so far{NOT_PROVEN}"
    return title, f"{speed_text(trial)} samples/s (trial {trial.number}){times}"


def lead_text(progress: Progress) -> str:
    """`best so far: 41.2 ± 0.3 samples/s (trial 2), 1.62x the baseline`."""
    return ": ".join(filter(None, lead_words(progress)))
