"""SanityCheck: what one evaluation batch and one checkpoint came to at the winner's settings."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.core.measurement import Outcome
from autotune.core.units import format_bytes

TRAINING, EVALUATION, SAVING = "training", "evaluation", "saving"
"""The parts, in their order; a failed training leaves the others untried."""

_WORDS = {TRAINING: "training", EVALUATION: "evaluation", SAVING: "checkpoint"}


@dataclass(frozen=True)
class Problem:
    """A part that failed, how, and why. where: training, evaluation or saving; anything else: the process itself."""

    where: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class SanityCheck:
    """What a few steps of the winner's training, one evaluation batch and one checkpoint came to, inside the limit.

    eval_batch_size: the per-device size that was checked; None where no batch went through.
    eval_batches_tried: sizes in the order tried, each half of the one before, which ran out of memory.
    eval_seconds: the whole evaluation of that one batch, its loader's start included.
    checkpoint_bytes, checkpoint_seconds: its files, and how long the Trainer took to write them; None where none was.
    checkpoint_skipped: why none was tried; empty where one was.
    peak_bytes: highest memory by part, the evaluation's that of the size that fitted: on a GPU what the allocator had
    handed out, on a CPU resident memory beyond the start.
    """

    eval_batch_size: int | None = None
    eval_batches_tried: tuple[int, ...] = ()
    eval_seconds: float | None = None
    checkpoint_bytes: int | None = None
    checkpoint_seconds: float | None = None
    checkpoint_skipped: str = ""
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def problem(self, where: str) -> Problem | None:
        """What failed in this part; None where nothing did."""
        return next((one for one in self.problems if one.where == where), None)

    def lines(self) -> list[str]:
        """What came of it, in words: a line for each part that was tried, left out or failed."""
        elsewhere = [one for one in self.problems if one.where not in (EVALUATION, SAVING)]
        said = [f"{_WORDS.get(one.where, 'rehearsal')}: {_in_words(one)}" for one in elsewhere]
        return said + self._evaluation() + self._checkpoint()

    def _evaluation(self) -> list[str]:
        if problem := self.problem(EVALUATION):
            starved = problem.outcome is Outcome.OUT_OF_MEMORY and self.eval_batches_tried[-1:] == (1,)
            return [f"evaluation: {'out of memory even with 1 sample' if starved else _in_words(problem)}"]
        if self.eval_batch_size is None:
            return []
        peak = f" (peak {format_bytes(self.peak_bytes[EVALUATION])})" if EVALUATION in self.peak_bytes else ""
        too_large = [str(size) for size in self.eval_batches_tried if size > self.eval_batch_size]
        advice = f": set per_device_eval_batch_size={self.eval_batch_size}"
        but = f"; out of memory with {', '.join(too_large)}{advice}" if too_large else ""
        return [f"evaluation: one batch of {self.eval_batch_size} fits{peak}{but}"]

    def _checkpoint(self) -> list[str]:
        if problem := self.problem(SAVING):
            return [f"checkpoint: {_in_words(problem)}"]
        if self.checkpoint_skipped:
            return [f"checkpoint: not tried: {self.checkpoint_skipped}"]
        if self.checkpoint_bytes is None or self.checkpoint_seconds is None:
            return []
        return [f"checkpoint: {format_bytes(self.checkpoint_bytes)} in {self.checkpoint_seconds:.1f} s"]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "eval_batches_tried": list(self.eval_batches_tried),
            "peak_bytes": dict(self.peak_bytes),
            "problems": [asdict(one) | {"outcome": one.outcome.value} for one in self.problems],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SanityCheck":
        problems = (Problem(**{**one, "outcome": Outcome(one["outcome"])}) for one in data["problems"])
        return cls(
            **{**data, "eval_batches_tried": tuple(data["eval_batches_tried"]), "problems": tuple(problems)},
        )


def _in_words(problem: Problem) -> str:
    return f"{problem.outcome.value.replace('_', ' ')}: {problem.reason}"
