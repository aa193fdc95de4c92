"""Sanity check of the winner: one evaluation batch and one checkpoint at its settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.core.io import Serializable
from autotune.core.measurement import Outcome
from autotune.core.units import format_bytes

TRAINING, EVALUATION, SAVING = "training", "evaluation", "saving"
"""The parts in their order; after a failed training the others are not tried."""

_WORDS = {TRAINING: "training", EVALUATION: "evaluation", SAVING: "checkpoint"}


@dataclass(frozen=True)
class SanityProblem(Serializable):
    """A part that failed, how, and why."""

    where: str  #: training, evaluation or saving; anything else: the process itself
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class SanityCheck(Serializable):
    """Results of a few steps of the winner's training, one evaluation batch and one checkpoint, within the limit."""

    eval_batch_size: int | None = None  #: the per-device size that fits; None if none did
    eval_batches_tried: tuple[int, ...] = ()  #: sizes in the order tried, each half of the one before
    eval_seconds: float | None = None  #: of the whole evaluation of that one batch, its loader's start included
    checkpoint_bytes: int | None = None
    checkpoint_seconds: float | None = None  #: how long the Trainer took to write its files
    checkpoint_skipped: str = ""  #: why none was tried
    evaluation_unchecked: str = ""  #: why the user's own evaluation was not checked
    outputs_bytes: int | None = None  #: that an evaluation of all rows keeps for compute_metrics; None if it keeps none
    outputs_left_bytes: int = 0  #: memory that is left for them
    accumulation_helps: bool = False  #: they fit the host's memory, but are kept on the device
    peak_bytes: Mapping[str, int] = field(default_factory=dict)  #: by part; on a CPU resident memory beyond the start
    problems: tuple[SanityProblem, ...] = ()

    def problem(self, where: str) -> SanityProblem | None:
        """The problem of this part, if any."""
        return next((problem for problem in self.problems if problem.where == where), None)

    @property
    def keeps_too_much(self) -> bool:
        """True if the outputs of an evaluation of all rows exceed the memory."""
        return (self.outputs_bytes or 0) > self.outputs_left_bytes

    def lines(self) -> list[str]:
        """The results as text: a line for each part that was tried, skipped or failed."""
        others = [problem for problem in self.problems if problem.where not in (EVALUATION, SAVING)]
        lines = [f"{_WORDS.get(problem.where, 'sanity check')}: {_text(problem)}" for problem in others]
        return lines + self._evaluation() + self._checkpoint()

    def _evaluation(self) -> list[str]:
        if problem := self.problem(EVALUATION):
            no_memory = problem.outcome is Outcome.OUT_OF_MEMORY and self.eval_batches_tried[-1:] == (1,)
            return [f"evaluation: {'out of memory even with 1 sample' if no_memory else _text(problem)}"]
        unchecked = (
            [f"evaluation: yours was not checked: {self.evaluation_unchecked}"] if self.evaluation_unchecked else []
        )
        if self.eval_batch_size is None:
            return unchecked
        peak = f" (peak {format_bytes(self.peak_bytes[EVALUATION])})" if EVALUATION in self.peak_bytes else ""
        too_large = [str(size) for size in self.eval_batches_tried if size > self.eval_batch_size]
        advice = f": set per_device_eval_batch_size={self.eval_batch_size}"
        but = f"; out of memory with {', '.join(too_large)}{advice}" if too_large else ""
        lines = [f"evaluation: one batch of {self.eval_batch_size} fits{peak}{but}", *unchecked]
        if self.keeps_too_much:
            set_more = " or set eval_accumulation_steps" if self.accumulation_helps else ""
            lines.append(
                f"evaluation: the outputs of all rows, which compute_metrics gets, need {format_bytes(self.outputs_bytes or 0)}, "
                f"and {format_bytes(self.outputs_left_bytes)} are left: reduce them in preprocess_logits_for_metrics{set_more}"
            )
        return lines

    def _checkpoint(self) -> list[str]:
        if problem := self.problem(SAVING):
            return [f"checkpoint: {_text(problem)}"]
        if self.checkpoint_skipped:
            return [f"checkpoint: not tried: {self.checkpoint_skipped}"]
        if self.checkpoint_bytes is None or self.checkpoint_seconds is None:
            return []
        return [f"checkpoint: {format_bytes(self.checkpoint_bytes)} in {self.checkpoint_seconds:.1f} s"]


def _text(problem: SanityProblem) -> str:
    return f"{problem.outcome.value.replace('_', ' ')}: {problem.reason}"
