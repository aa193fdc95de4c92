"""Stop reason: why a search ended."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.core.interrupt import Terminated
from autotune.core.reason import Reason
from autotune.core.units import counted, format_seconds


class StopKind(StrEnum):
    """Kind of end of a search."""

    BUDGET = "budget"  # its number of trials is used
    TIME = "time"  # its time limit is reached, or leaves too little
    NOTHING_TO_WIN = "nothing_to_win"  # nothing untested can be much better
    NOT_WORTH_IT = "not_worth_it"  # another probe costs more than it is expected to save
    ALL_TESTED = "all_tested"
    ALL_PROPOSED = "all_proposed"  # the sampler repeats itself
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    FAILED = "failed"


@dataclass(frozen=True)
class StopReason(Reason):
    """The reason why a search ended, with the numbers that its text shows.

    detail: the signal that interrupted it, the error that ended it, or the configuration that is estimated to be the fastest.
    """

    kind: StopKind
    advice: str = ""  #: of the error that ended it

    @property
    def is_end(self) -> bool:
        """True if the search came to its end, rather than being cut off."""
        return self.kind not in (StopKind.INTERRUPTED, StopKind.KILLED, StopKind.FAILED)

    @property
    def bound(self) -> float | None:
        """Share by which untested configurations can still beat the best at most, if the text says it."""
        if self.kind is StopKind.NOTHING_TO_WIN and "max_gain_if_fits" in self.numbers:
            return max(self.numbers["margin"], self.numbers["max_gain_if_fits"])
        return 0.0 if self.kind is StopKind.ALL_TESTED else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with text and bound."""
        return super().to_dict() | {"bound": self.bound}

    @property
    def text(self) -> str:
        """For people, with all that is to be said: without a capital and a full stop."""
        return "; ".join(filter(None, (self.short, self.remark)))

    @property
    def short(self) -> str:
        """The reason alone."""
        numbers = self.numbers
        match self.kind:
            case StopKind.BUDGET:
                further = numbers.get("further_trials", 0)
                more = f", and {further:.0f} more for trials that ran out of memory in a round" if further else ""
                return f"the budget of {numbers['n_trials']:.0f} trials is used{more}"
            case StopKind.TIME:
                return self.detail or self._time_text()
            case StopKind.NOTHING_TO_WIN:
                return self._nothing_to_win_text()
            case StopKind.NOT_WORTH_IT:
                return self._not_worth_it_text()
            case StopKind.ALL_TESTED:
                is_part = numbers.get("tested", 0) < numbers.get("space", 0)
                around = "around the best of the core settings " if is_part else ""
                return f"all configurations {around}have been measured or ruled out"
            case StopKind.ALL_PROPOSED:
                return f"{numbers['proposals']:.0f} proposals in a row were measured or ruled out already"
            case StopKind.INTERRUPTED:
                return f"ended by {self.detail}" if self.detail else "interrupted by the user"
            case StopKind.KILLED:
                return "the search was interrupted"
        return self.detail

    @property
    def remark(self) -> str:
        """What else is to be said, such as what could be won by configurations that may not fit; may be empty."""
        if self.kind is StopKind.NOTHING_TO_WIN and (self.bound or 0.0) > self.numbers["margin"]:
            return f"if others fit too, they can beat the best by at most {_share(self.bound or 0.0)}"
        if self.kind is StopKind.NOT_WORTH_IT and self.detail:
            return f"estimated fastest: {self.detail}"
        return ""

    def _time_text(self) -> str:
        limit = format_seconds(self.numbers["limit_s"])
        if "left_s" not in self.numbers:
            return f"the time limit of {limit} is reached"
        trial = "another trial and its proof" if self.numbers["rounds"] else "another trial"
        return f"{format_seconds(self.numbers['left_s'])} of the time limit of {limit} were left, too few for {trial}"

    def _nothing_to_win_text(self) -> str:
        numbers, untested = self.numbers, counted(int(self.numbers["untested"]), "untested configuration")
        confidence = f" ({numbers['confidence']:.0%} confidence, {untested})"
        if self.bound is not None and self.bound <= numbers["margin"]:
            which = "no untested configuration can"
        elif numbers.get("max_gain", 1.0) > 0:
            which = "no untested configuration that is likely to fit can"
        else:
            return f"no untested configuration is likely to fit{confidence}"
        return f"{which} beat the best by more than {_share(numbers['margin'])}{confidence}"

    def _not_worth_it_text(self) -> str:
        training, probe = (format_seconds(self.numbers[name]) for name in ("training_s", "probe_s"))
        if steps := self.numbers.get("training_steps"):
            return (
                f"your {steps:.0f} steps take about {training}: "
                f"another probe of about {probe} is not expected to save as much"
            )
        return (
            f"another probe of about {probe} is not expected to save as much in {training} of training "
            "(--training-steps says how long yours is)"
        )


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


KILLED = StopReason(StopKind.KILLED)
"""Of a search that wrote no end."""


def stop_reason_of(ended: BaseException) -> StopReason:
    """The reason why a search ended early."""
    if isinstance(ended, KeyboardInterrupt):
        return StopReason(StopKind.INTERRUPTED, detail=ended.number.name if isinstance(ended, Terminated) else "")
    if isinstance(ended, (SearchFailed, TimeIsOver)):
        message, advice = ended.written
        message = " ".join(message.split()).rstrip(".")
        kind = StopKind.TIME if isinstance(ended, TimeIsOver) else StopKind.FAILED
        return StopReason(kind, detail=message[:1].lower() + message[1:], advice=advice)
    return StopReason(StopKind.FAILED, detail=f"the search failed with {type(ended).__name__}")
