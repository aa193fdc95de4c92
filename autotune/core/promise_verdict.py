"""Verdict on a promised speed-up: whether plain trainings show it, and why."""

from dataclasses import dataclass

from autotune.core.reason import Kind, Reason

_SPEED_UPS = (
    "{speedup:.2f}x as fast as the baseline (95% interval {speedup_low:.2f}x{speedup_high:end}); "
    "promised {promised:.2f}x ({promised_low:.2f}x{promised_high:end})"
)
_OVER_LIMIT = "reached the memory limit (peak {peak_bytes:bytes} of {allowed_bytes:bytes} allowed)"


class PromiseKind(Kind):
    """Kind of a verdict."""

    HELD = "held", f"held: {_SPEED_UPS}"
    MORE_THAN_HELD = "more_than_held", f"more than held: {_SPEED_UPS}"
    ANSWER_ALONE = (
        "answer_alone",
        "held: it trains within the memory; the baseline did not run in the search, to compare with",
    )
    OWN_SETTINGS = "own_settings", "nothing to verify: the answer is the baseline"

    SLOWER = "slower", f"not held: {_SPEED_UPS}"
    ANSWER_OVER_LIMIT = "answer_over_limit", f"not held: the answer {_OVER_LIMIT}"
    ANSWER_OUT_OF_MEMORY = "answer_out_of_memory", "not held: the answer did not complete: {detail}"
    ANSWER_FAILED = "answer_failed", "not held: the answer did not complete: {detail}"

    WIDE_INTERVAL = "wide_interval", f"cannot tell: the interval is {{width:.0%}} wide; {_SPEED_UPS}"
    FEW_ROUNDS = "few_rounds", f"cannot tell: only {{rounds:round}} each; {_SPEED_UPS}"
    DISTURBED = (
        "disturbed",
        f"cannot tell: the machine was disturbed in {{disturbed:.0f}} of {{rounds:round}}; {_SPEED_UPS}",
    )
    YOURS_OVER_LIMIT = "yours_over_limit", f"cannot tell: the baseline {_OVER_LIMIT}"
    YOURS_FAILED = "yours_failed", "cannot tell: the baseline did not complete: {detail}"
    NOT_TRAINED = "not_trained", "cannot tell: the baseline and the answer were not both trained"


ANSWER_FAILS = (PromiseKind.ANSWER_OVER_LIMIT, PromiseKind.ANSWER_OUT_OF_MEMORY, PromiseKind.ANSWER_FAILED)
YOURS_FAIL = (PromiseKind.YOURS_OVER_LIMIT, PromiseKind.YOURS_FAILED, PromiseKind.YOURS_FAILED)
"""Kinds if a side needs more memory than allowed, runs out of memory, or fails otherwise."""

UNSURE = (PromiseKind.WIDE_INTERVAL, PromiseKind.FEW_ROUNDS, PromiseKind.DISTURBED)
"""Kinds that longer trainings may decide."""


@dataclass(frozen=True)
class PromiseVerdict(Reason):
    """A verdict with both speed-ups and their 95 % intervals. detail: why a training did not complete."""

    kind: PromiseKind

    @property
    def held(self) -> bool | None:
        """True if the promise holds; None: cannot tell."""
        if self.kind in (*UNSURE, *YOURS_FAIL, PromiseKind.NOT_TRAINED):
            return None
        return self.kind not in (PromiseKind.SLOWER, *ANSWER_FAILS)

    @property
    def advice(self) -> str:
        """Advice on the next step; empty if it holds."""
        if self.kind in UNSURE:
            action = "Close other programs, then verify" if self.numbers["disturbed"] else "Verify"
            return f"{action} again with --seconds {self.numbers['seconds']:.0f}."
        if self.kind is PromiseKind.SLOWER:
            return "Search again on the machine as it is now: the same search command with --fresh."
        if self.kind in (PromiseKind.ANSWER_OVER_LIMIT, PromiseKind.ANSWER_OUT_OF_MEMORY):
            return "Search again with a larger --headroom."
        return "" if self.held else "The logs are in the study's folder probes/verification."
