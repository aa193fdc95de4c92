"""Step: one timed optimizer step and its parts.

One optimizer step, from the end of the one before it to its end:

    | data wait | first micro-step | middle ... middle | last micro-step, clipping, optimizer |
                  writes gradients   adds to them        synchronises ranks
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression

from autotune.core.interval import ratio_interval
from autotune.core.io import Serializable

MICRO_STEPS = 3
"""Micro-steps (first, middle and last) from which a step of more is composed."""

FITTED = 5
"""Timed steps from which on the time of a token is fitted to them."""

DRIFT = 0.10
"""Change of speed from the first to the second half of the timed steps from which there is a warning."""


@dataclass(frozen=True)
class Step(Serializable):
    """One timed optimizer step as it was run, on one rank; all times in seconds."""

    seconds: float  #: from the end of the step before to the end of this one
    data_wait_s: float  #: the device waited for its micro-batches
    first_s: float  #: its first micro-step; 0 if only one was run
    middle_s: float  #: mean of the micro-steps between the first and the last
    last_s: float  #: its last micro-step with clipping and optimizer
    optimizer_s: float  #: the part of last_s in clipping and the optimizer
    samples: int
    tokens: int  #: padding included; 0 if a sample has none
    forward_s: float = 0.0  #: of all its micro-steps together
    backward_s: float = 0.0
    middle_forward_s: float = 0.0  #: mean of the micro-steps between the first and the last
    middle_backward_s: float = 0.0
    non_padding_tokens: int = 0

    @property
    def overhead_s(self) -> float:
        """Outside all parts: the Trainer's work."""
        return max(0.0, self.seconds - self.data_wait_s - self.forward_s - self.backward_s - self.optimizer_s)

    @property
    def computing_s(self) -> float:
        """All forward and backward passes."""
        return self.forward_s + self.backward_s

    def composed(
        self, run: int, requested: int, tokens_per_sample: float | None = None, token_s: float | None = None
    ) -> "Step":
        """This step with `requested` accumulation steps instead of the `run` it had: first + (k - 2) middle + last.

        Fetching is counted batch by batch; work that the Trainer does once a step stays once. tokens_per_sample: of the data's
        batches on average, padding included, if they differ in length. Then forward and backward take the time of as many
        tokens as such a step has: few steps meet long or short texts by chance, and a speed would tell more of these.
        token_s: seconds of one token more (`seconds_of_a_token`); by default all of the time grows with the tokens.
        """
        more = requested - run
        wait = self.data_wait_s * requested / run
        if tokens_per_sample and self.tokens:
            samples, computing = self.samples * requested // run, self.computing_s
            longer = tokens_per_sample * samples / self.tokens
            if token_s is not None and computing:
                usual_s = computing + token_s * (tokens_per_sample * self.samples - self.tokens)
                longer = max(0.0, usual_s) / computing * requested / run
            between = max(0.0, self.middle_s - self.middle_forward_s - self.middle_backward_s)
            return replace(
                self,
                seconds=self.seconds + (longer - 1) * computing + (wait - self.data_wait_s) + more * between,
                data_wait_s=wait,
                forward_s=longer * self.forward_s,
                backward_s=longer * self.backward_s,
                samples=samples,
                tokens=round(tokens_per_sample * samples),
                non_padding_tokens=round(tokens_per_sample * samples / self.tokens * self.non_padding_tokens),
            )
        if not more:
            return self
        return replace(
            self,
            seconds=self.seconds + more * self.middle_s + (wait - self.data_wait_s),
            data_wait_s=wait,
            forward_s=self.forward_s + more * self.middle_forward_s,
            backward_s=self.backward_s + more * self.middle_backward_s,
            samples=self.samples * requested // run,
            tokens=self.tokens * requested // run,
            non_padding_tokens=self.non_padding_tokens * requested // run,
        )


def composed_steps(
    steps: Sequence[Step], run: int, requested: int, tokens_per_sample: float | None = None
) -> list[Step]:
    """The steps with the requested accumulation, each as long as the data's steps are on average (`Step.composed`)."""
    token_s = seconds_of_a_token(steps) if tokens_per_sample else None
    return [step.composed(run, requested, tokens_per_sample, token_s) for step in steps]


def seconds_of_a_token(steps: Sequence[Step]) -> float | None:
    """Seconds of forward and backward that one token more takes, by a straight line through the steps.

    A micro-step also takes time that does not depend on its tokens (starting kernels), so that the line starts at 0 or above.
    None of fewer than FITTED steps or of steps of one length: their noise would bend it.
    """
    if len(steps) < FITTED or len({step.tokens for step in steps}) == 1:
        return None
    tokens, seconds = [float(step.tokens) for step in steps], [step.computing_s for step in steps]
    return min(max(0.0, linear_regression(tokens, seconds).slope), sum(seconds) / sum(tokens))


def drift(steps: Sequence[Step]) -> float:
    """The change of speed from the first half of the steps to the second; 0 if it may be chance or is small.

    Counted in tokens if there are any: samples of real data differ in length.
    """
    if len(steps) < 8:
        return 0.0
    middle = len(steps) // 2
    before, after = (
        ratio_interval([step.tokens or step.samples for step in part], [step.seconds for step in part])
        for part in (steps[:middle], steps[middle:])
    )
    apart = before.high < after.low or after.high < before.low
    change = after / before - 1
    return change if apart and abs(change) >= DRIFT else 0.0
