"""95 % intervals: of a rate over steps, and of a quotient of pairs."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev


class Interval(float):
    """A number that carries its two-sided 95 % interval, `low` and `high`, in the same unit."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> "Interval":
        self = super().__new__(cls, value)
        self.low, self.high = low, high
        return self

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return (float(self), self.low, self.high)

    @property
    def value(self) -> float:
        """The number alone."""
        return float(self)

    @property
    def relative_width(self) -> float:
        """Full width of the interval as a share of the value."""
        return (self.high - self.low) / self if self else math.inf

    @property
    def is_vague(self) -> bool:
        """True if half of the interval is wider than half the value, so that the value is hardly known."""
        return self.relative_width > 1


class Ratio(Interval):
    """One number as a multiple of another, such as a speed-up; as text `1.46x (1.26 to 1.70)`, `float()` is the number alone."""

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self:.2f}x"
        ends = f"{self.low:.2f} to {self.high:.2f}" if math.isfinite(self.high) else f"at least {self.low:.2f}"
        return f"{self:.2f}x ({ends})"


MEMORY = 0.92
"""Hurst exponent of the times of steps that follow each other in one process (0.5: independent).

A shared machine is now faster, now slower, for seconds and for minutes: the mean of n neighbouring steps errs like
n^(MEMORY - 1), not like 1 / sqrt(n). Fitted so that 95 % intervals of 3 to 24 steps cover the value of the whole run in
92 to 96 % of windows of recorded runs on two occasions: benchmarks/stopping.py, with a table in reports/stopping.md.
"""


def ratio_interval(counts: Sequence[float], seconds: Sequence[float], memory: float = MEMORY) -> Interval:
    """counts / seconds over all entries, with the 95 % interval of that ratio.

    memory: the Hurst exponent of the entries' noise; 0.5 for independent ones, such as rounds apart in time. The variance
    is the ratio estimator's (Cochran, Sampling Techniques, 3rd ed., section 6.4) with residuals
    count - ratio x seconds; of n entries with long memory the mean has the variance s^2 n^(2H-2), and their spread
    shows s^2 (n - n^(2H-1)) / (n - 1) of it (Beran, Statistics for Long-Memory Processes, sections 1.1 and 8.2).
    One entry alone gives (0, infinity).
    """
    total, n = sum(seconds), len(seconds)
    ratio = sum(counts) / total
    if n < 2:
        return Interval(ratio, 0.0, math.inf)
    squares = sum((count - ratio * second) ** 2 for count, second in zip(counts, seconds, strict=True))
    variance = squares / (n - n ** (2 * memory - 1)) * n ** (2 * memory - 2)
    half = student_t(n - 1) * math.sqrt(variance) * n / total
    return Interval(ratio, max(0.0, ratio - half), ratio + half)


def foreseen_width(speed: Interval, steps: int, more: int, memory: float = MEMORY) -> float:
    """The relative width of the interval after `more` steps that vary as the earlier ones."""

    def width(n: int) -> float:
        return student_t(n - 1) * math.pow(n, memory - 1) / math.sqrt((n - math.pow(n, 2 * memory - 1)) / (n - 1))

    return speed.relative_width * width(steps + more) / width(steps)


def quotient_of_means(above: Interval, below: Interval) -> Ratio:
    """above / below of independent means: their relative half-widths add in squares (Gaussian propagation)."""
    ratio = above.value / below.value
    half = ratio * math.hypot(above.relative_width, below.relative_width) / 2
    return Ratio(ratio, max(0.0, ratio - half), ratio + half)


def quotient_interval(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """above / below of numbers taken in pairs, with the 95 % interval of their geometric mean.

    A slowdown of both of a pair at a time cancels. One pair alone gives (0, infinity).
    """
    logarithms = [math.log(upper / lower) for upper, lower in zip(above, below, strict=True)]
    n, mean = len(logarithms), fmean(logarithms)
    if n < 2:
        return Ratio(math.exp(mean), 0.0, math.inf)
    half = student_t(n - 1) * stdev(logarithms) / math.sqrt(n)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def student_t(degrees: int, share: float = 0.05) -> float:
    """The quantile of Student's t that is exceeded, upwards or downwards, with this probability.

    Exact for 1 and 2 degrees, else within 1 %: expansion in the normal quantile (Abramowitz and Stegun, Handbook of
    Mathematical Functions, 26.7.5).
    """
    if degrees == 1:
        return 1 / math.tan(math.pi * share / 2)
    if degrees == 2:
        return (1 - share) / math.sqrt(share * (1 - share / 2))
    z = NormalDist().inv_cdf(1 - share / 2)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
