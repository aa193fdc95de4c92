"""Stop reason: why a search ended."""

from dataclasses import dataclass
from enum import StrEnum

from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.core.interrupt import Terminated
from autotune.core.io import Serializable


class StopKind(StrEnum):
    """Kind of end of a search."""

    BUDGET = "budget"  # its number of trials is used
    TIME = "time"  # its time limit is reached, or leaves too little
    NOTHING_TO_WIN = "nothing_to_win"  # nothing untested can be much better
    NOT_WORTH_IT = "not_worth_it"  # another probe costs more than it is expected to save
    ALL_TESTED = "all_tested"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class StopReason(Serializable):
    """The reason why a search ended."""

    kind: StopKind
    text: str  #: for people: without a capital and a full stop
    bound: float | None = (
        None  #: share by which untested configurations can still beat the best at most, if the text says it
    )

    @property
    def is_end(self) -> bool:
        """True if the search came to its end, rather than being cut off."""
        return self.kind not in (StopKind.INTERRUPTED, StopKind.FAILED)


UNFINISHED = StopReason(StopKind.INTERRUPTED, "the search was interrupted")
"""Of a search that was killed."""


def stop_reason_of(ended: BaseException) -> StopReason:
    """The reason why a search ended early."""
    if isinstance(ended, KeyboardInterrupt):
        by = f"ended by {ended.number.name}" if isinstance(ended, Terminated) else "interrupted by the user"
        return StopReason(StopKind.INTERRUPTED, by)
    if isinstance(ended, (SearchFailed, TimeIsOver)):
        message = " ".join(ended.written[0].split()).rstrip(".")
        kind = StopKind.TIME if isinstance(ended, TimeIsOver) else StopKind.FAILED
        return StopReason(kind, message[:1].lower() + message[1:])
    return StopReason(StopKind.FAILED, f"the search failed with {type(ended).__name__}")
