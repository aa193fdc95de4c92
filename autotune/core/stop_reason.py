"""Stop reason: why a search ended."""

from dataclasses import dataclass
from typing import Any

from autotune.core.errors import ProbeHostFailed, SearchFailed, TimeIsOver
from autotune.core.interrupt import Terminated
from autotune.core.reason import Kind, Reason

_SURE = "({confidence:.0%} confidence, {untested:untested configuration})"


class StopKind(Kind):
    """Kind of end of a search."""

    BUDGET = "budget", "the budget of {n_trials:.0f} trials is used"
    TIME = "time", "the time limit of {limit_s:time} is reached"
    LITTLE_TIME = "little_time", "{left_s:time} of the time limit of {limit_s:time} were left, too few for {detail}"
    NO_TIME = "no_time", "{detail}"  # for the baseline
    NOTHING_TO_WIN = (
        "nothing_to_win",
        f"no untested configuration can beat the best by more than {{margin:share}} {_SURE}",
    )
    NOTHING_LIKELY_TO_WIN = (
        "nothing_likely_to_win",
        f"no untested configuration that is likely to fit can beat the best by more than {{margin:share}} {_SURE}",
    )
    NOTHING_LIKELY_TO_FIT = "nothing_likely_to_fit", f"no untested configuration is likely to fit {_SURE}"
    NOT_WORTH_IT = (
        "not_worth_it",
        "your {training_steps:.0f} steps take about {training_s:time}: "
        "another probe of about {probe_s:time} is not expected to save as much",
    )
    NOT_WORTH_ASSUMED = (
        "not_worth_assumed",
        "another probe of about {probe_s:time} is not expected to save as much in {training_s:time} of training "
        "(--training-steps says how long yours is)",
    )
    NOTHING_BETTER = (
        "nothing_better",
        "none of the last {trials:.0f} trials was faster by more than {margin:share}, "
        "and no untested configuration is expected to be",
    )
    ALL_TESTED = "all_tested", "all configurations have been measured or ruled out"
    CORE_TESTED = (
        "core_tested",
        "all configurations around the best of the core settings have been measured or ruled out",
    )
    ALL_PROPOSED = "all_proposed", "{proposals:.0f} proposals in a row were measured or ruled out already"
    INTERRUPTED = "interrupted", "interrupted by the user"
    TERMINATED = "terminated", "ended by {detail}"
    KILLED = "killed", "the search was interrupted"
    FAILED = "failed", "{detail}"


TIMES = (StopKind.TIME, StopKind.LITTLE_TIME, StopKind.NO_TIME)
NOTHING_LEFT = (
    *(StopKind.NOTHING_TO_WIN, StopKind.NOTHING_LIKELY_TO_WIN, StopKind.NOTHING_LIKELY_TO_FIT),
    StopKind.NOTHING_BETTER,
    *(StopKind.ALL_TESTED, StopKind.CORE_TESTED, StopKind.ALL_PROPOSED),
)
"""Reasons whose text says what may be left to gain."""


@dataclass(frozen=True)
class StopReason(Reason):
    """The reason why a search ended. detail: a signal, the message of an error, or what there was no time for."""

    kind: StopKind
    fastest: str = ""  #: the configuration that is estimated to be the fastest, if only the baseline was measured
    advice: str = ""  #: of the error that ended it

    @property
    def is_end(self) -> bool:
        """True if the search came to its end, rather than being cut off."""
        return self.kind not in (StopKind.INTERRUPTED, StopKind.TERMINATED, StopKind.KILLED, StopKind.FAILED)

    @property
    def bound(self) -> float | None:
        """Share by which untested configurations can still beat the best at most, if the text says it."""
        if self.kind in (StopKind.ALL_TESTED, StopKind.CORE_TESTED):
            return 0.0
        return self.numbers.get("margin" if self.kind is StopKind.NOTHING_TO_WIN else "max_gain_if_fits")

    @property
    def short(self) -> str:
        """The reason alone."""
        return super().text

    @property
    def text(self) -> str:
        """Text with all remarks, such as what could be won by configurations that may not fit."""
        remarks = {
            "; {further_trials:.0f} more for trials that ran out of memory in a round": self.numbers.get(
                "further_trials"
            ),
            "; if others fit too, they can beat the best by at most {max_gain_if_fits:share}": self.numbers.get(
                "max_gain_if_fits"
            ),
            f"; estimated fastest: {self.fastest}": self.fastest,
        }
        return self.short + self.filled("".join(remark for remark, is_known in remarks.items() if is_known))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with text and bound."""
        return super().to_dict() | {"bound": self.bound}


KILLED = StopReason(StopKind.KILLED)
"""Reason of a search that wrote no end."""


def stop_reason_of(ended: BaseException) -> StopReason:
    """The reason why a search ended early."""
    if isinstance(ended, Terminated):
        return StopReason(StopKind.TERMINATED, detail=ended.number.name)
    if isinstance(ended, KeyboardInterrupt):
        return StopReason(StopKind.INTERRUPTED)
    if isinstance(ended, (ProbeHostFailed, SearchFailed, TimeIsOver)):
        message = " ".join(ended.message.split()).rstrip(".")
        kind = StopKind.NO_TIME if isinstance(ended, TimeIsOver) else StopKind.FAILED
        return StopReason(kind, detail=message[:1].lower() + message[1:], advice=ended.advice)
    return StopReason(StopKind.FAILED, detail=f"the search failed with {type(ended).__name__}")
