"""The covariance of configurations: what they share is what they tell of each other."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from autotune.core.configuration import Configuration
from autotune.sampler.kernel import EffectKernel, encode, overlap_of, self_overlap

VALUES = {"micro_batch_size": (1, 2, 4, 8, 16), "precision": ("fp32", "bf16"), "optimizer": ("a", "b", "c")}
BASE = Configuration.exact(16, 4, {"precision": "fp32", "optimizer": "a"})
LIKENESS = EffectKernel(level=1.0, slope=0.2, walk=0.3, value=0.4, growth=0.1, pair=0.15, rest=0.05)


def of(micro: int, precision: str = "fp32", optimizer: str = "a") -> Configuration:
    return Configuration.exact(16, micro, {"precision": precision, "optimizer": optimizer})


EVERY = [of(*candidate) for candidate in product(*VALUES.values())]


def covariance(candidate: Configuration, other: Configuration) -> float:
    a, b = (encode([c], VALUES, BASE) for c in (candidate, other))
    return float(LIKENESS.covariance(overlap_of(a, b), a, b)[0, 0])


def effects_of(candidate: Configuration) -> dict[str, float]:
    """Every effect of the linear model by name, with how often this configuration has it."""
    doublings = float(np.log2(candidate.micro_batch_size / 4))
    changed = [f"{n}={v}" for n, v in candidate.settings if v != BASE.values[n]]
    effects = {"level": 1.0, "slope": 0.2 * doublings, f"rest {candidate}": 0.05}
    for step in range(int(abs(doublings))):
        effects[f"walk {np.sign(doublings)} {step}"] = 0.3
    for at, name in enumerate(changed):
        effects |= {name: 0.4, f"{name} growth": 0.1 * doublings}
        effects |= {f"{name} with {other}": 0.15 for other in changed[at + 1 :]}
    effects["level"] = 1.0
    return effects


@pytest.mark.parametrize("candidate", EVERY[::4], ids=str)
def test_it_is_the_covariance_of_the_linear_model_written_out(candidate: Configuration) -> None:
    mine = effects_of(candidate)
    for other in EVERY:
        theirs = effects_of(other)
        written_out = sum(weight * theirs.get(name, 0.0) for name, weight in mine.items())
        assert covariance(candidate, other) == pytest.approx(written_out)


def test_the_order_in_which_a_configuration_names_its_settings_is_of_no_account() -> None:
    turned = [replace(candidate, settings=candidate.settings[::-1]) for candidate in EVERY]
    points, others = encode(EVERY, VALUES, BASE), encode(turned, VALUES, BASE)
    assert (points.codes == others.codes).all()
    assert overlap_of(points, others).same.diagonal().all()


def test_a_space_without_settings_has_micro_batches_only() -> None:
    sizes = [Configuration.exact(8, size, {}) for size in (1, 2, 4, 8)]
    points = encode(sizes, {"micro_batch_size": (1, 2, 4, 8)}, sizes[1])
    assert points.codes.shape == (4, 0)
    assert LIKENESS.variance(self_overlap(points), points)[1] == pytest.approx(1.0**2 + 0.05**2)
