"""Loss curves: whether configurations learn as the reference does, by their losses in the rounds that both ran."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev, variance

from autotune.core.io import Serializable
from autotune.core.note import Note, NoteKind

COMPARED_STEPS = 30
"""Optimizer steps of a confirmation round whose losses are kept at most."""

LEAST_STEPS = 4
"""Steps that two trainings must share to be compared."""

LEARNED_LESS, LEARNED_MORE = 0.1, 1.0
"""Shares of what the reference learned by which a trial may learn less or more. On the same weights, samples and dropout
bf16 autocast differs by 0.1 % and another micro-batch size by up to 3 %; weights in bf16, which lose small updates, by 13 %
(gpt2-mini) and 30 % (bert-mini); a learning rate ten times too low by 90 %, ten times too high by 270 to 600 % (14 steps,
reports/LOG.md)."""

DEVIATIONS = 3.0
"""Standard errors that a difference exceeds to be one: dropout and padding draw other numbers with other micro-batches."""

RELATED = 2.0
"""Variance of a mean of steps that follow each other, divided by the variance for independent steps."""

LEAST_DIFFERENCE = 0.001
"""Share of the loss that is never flagged."""

BASELINE = "the baseline"
"""Name of the reference if nothing more exact ran than the baseline itself."""


@dataclass(frozen=True)
class Curve(Serializable):
    """The loss of each optimizer step of one training."""

    losses: tuple[float, ...] = ()  #: in the steps' order, NaN and infinities included

    @property
    def non_finite_step(self) -> int | None:
        """The first step, counted from 1, whose loss was NaN or infinite."""
        return next((step for step, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), None)


@dataclass(frozen=True)
class Difference(Serializable):
    """Trial's loss minus the reference's over the second half of the steps that they share."""

    loss: float  #: mean over the rounds
    error: float  #: its standard error
    learned: float  #: by how much the reference's own loss had fallen by then
    learned_error: float  #: the standard error of that
    level: float  #: the reference's own loss by then
    steps: int  #: of the shortest shared round
    rounds: int

    def is_flagged(self, loss: float) -> bool:
        """True if `loss` would be flagged: more than chance explains, and much of what the reference learned."""
        share = LEARNED_LESS if loss > 0 else LEARNED_MORE
        learned = max(0.0, self.learned) + 2 * self.learned_error
        return abs(loss) > max(DEVIATIONS * self.error, share * learned, LEAST_DIFFERENCE * abs(self.level))

    @property
    def is_sensitive(self) -> bool:
        """True if a training that learns nothing would be flagged."""
        return self.is_flagged(self.learned) and self.learned > 0


@dataclass(frozen=True)
class Numerics(Serializable):
    """The loss curves of the reference and of trials, round by round: each with its own weights and samples for all."""

    references: Mapping[int, Curve] = field(default_factory=dict)  #: round -> the reference's curve
    curves: Mapping[int, Mapping[int, Curve]] = field(default_factory=dict)  #: trial number -> round -> its curve
    reference: str = "fp32"  #: what the reference is, as text
    weights: str = "random weights"  #: where the model's weights came from, as text
    notes: tuple[Note, ...] = ()

    @property
    def problem(self) -> str:
        """Reason why nothing can be compared; empty if something can."""
        is_problem = any(note.kind is NoteKind.BASELINE_FAILS for note in self.notes)
        return ", and ".join(map(str, self.notes)) if is_problem else ""

    def difference(self, number: int) -> Difference | None:
        """Difference of the trial's losses; None if it shares no round of finite losses with the reference."""
        pairs = list(self._pairs(number))
        if not pairs:
            return None
        above = [[own - other for own, other in zip(*halves, strict=True)] for _, *halves in pairs]
        learned = [first - fmean(reference) for first, _, reference in pairs]
        level = fmean(fmean(reference) for _, _, reference in pairs)
        means = [fmean(steps) for steps in above]
        within = fmean(RELATED * variance(steps) / len(steps) for steps in above)
        error = math.sqrt(max(within, variance(means) if len(means) > 1 else 0.0) / len(means))
        spread = stdev(learned) / math.sqrt(len(learned)) if len(learned) > 1 else 0.0
        steps = 2 * min(len(half) for half in above)
        return Difference(fmean(means), error, fmean(learned), spread, level, steps, len(means))

    def _pairs(self, number: int) -> Iterator[tuple[float, list[float], list[float]]]:
        """First loss of the reference, and both's losses over the second half of the shared steps, for each shared round."""
        for round_number, curve in self.curves.get(number, {}).items():
            reference = self.references.get(round_number, Curve())
            steps = min(len(curve.losses), len(reference.losses))
            own, other = list(curve.losses[steps // 2 : steps]), list(reference.losses[steps // 2 : steps])
            if steps >= LEAST_STEPS and all(map(math.isfinite, own + other)):
                yield reference.losses[0], own, other

    def _non_finite(self, number: int) -> tuple[float, int] | None:
        """(loss, step) of the first loss of the trial that was not finite."""
        for curve in self.curves.get(number, {}).values():
            if step := curve.non_finite_step:
                return curve.losses[step - 1], step
        return None

    def is_checked(self, number: int) -> bool:
        """True if this trial's losses were compared, or not even finite."""
        return not self.problem and bool(self._non_finite(number) or self.difference(number))

    def flag(self, number: int) -> str:
        """Reason why this trial does not learn as the reference does; empty if it does, and if that is unknown."""
        if self.problem:
            return ""
        if non_finite := self._non_finite(number):
            return f"the loss became {non_finite[0]} in step {non_finite[1]}"
        difference = self.difference(number)
        if difference is None or not difference.is_flagged(difference.loss):
            return ""
        how = f"{abs(difference.loss):.3g} {'above' if difference.loss > 0 else 'below'} {self.reference}'s"
        return f"after {difference.steps} steps the loss is {how}, which had fallen by {difference.learned:.3g}"

    def why_unchecked(self, number: int) -> str:
        """Reason why this trial's losses were not compared; empty if they were."""
        if self.is_checked(number):
            return ""
        return self.problem or "no round that it shares with the reference was long enough"
