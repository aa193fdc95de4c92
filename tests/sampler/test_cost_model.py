"""The cost model on worlds whose costs are known: it finds them, and says how sure it is."""

from itertools import product

import numpy as np
import pytest

from autotune.core import Configuration, Outcome
from autotune.judge.observation import Observation
from autotune.sampler.cost_model import CostModel
from autotune.sampler.prior import MemoryPrior, Prior, roofline
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from autotune.space.settings import CostChange, WorkFactors
from tests.makers import MIB

VALUES = {"micro_batch_size": (1, 2, 4, 8, 16), "checkpointing": ("none", "full"), "optimizer": ("fused", "slow")}


def of(micro: int, checkpointing: str = "none", optimizer: str = "fused") -> Configuration:
    return Configuration.exact(16, micro, {"checkpointing": checkpointing, "optimizer": optimizer})


BASE = of(4)
EVERY = [of(*candidate) for candidate in product(*VALUES.values())]
SPACE = SearchSpace("test", BASE.global_batch_size, VALUES, BASE)
EXACT = MemoryPrior(offset_bytes=50.0 * MIB, noise_bytes=0.1 * MIB)


def parts(candidate: Configuration) -> tuple[float, float]:
    """Seconds of a micro-step and of the optimizer's: this world's truth."""
    micro = (0.01 + 0.01 * candidate.micro_batch_size) * (1.3 if candidate.values["checkpointing"] == "full" else 1.0)
    return micro, 0.3 if candidate.values["optimizer"] == "slow" else 0.05


def seconds(candidate: Configuration) -> float:
    micro, optimizer = parts(candidate)
    return candidate.gradient_accumulation_steps * micro + optimizer


def estimate(candidate: Configuration) -> float:
    return (
        100.0 + 20.0 * candidate.micro_batch_size * (0.4 if candidate.values["checkpointing"] == "full" else 1.0)
    ) * MIB


def peak(candidate: Configuration) -> int:
    """60 MiB more than estimated, and a percent."""
    return int(1.01 * estimate(candidate) + 60 * MIB)


def seen(candidate: Configuration, noise: float = 0.01, **facts: object) -> Observation:
    usual = {
        "step_s": seconds(candidate),
        "optimizer_step_s": parts(candidate)[1],
        "peak_bytes": peak(candidate),
        "feasible": True,
    }
    return Observation(candidate, Outcome.COMPLETED, noise=noise, **usual | facts)  # type: ignore[arg-type]


def model(allowed_bytes: int = 1000 * MIB, prior: Prior | None = None, training_steps: int | None = None) -> CostModel:
    known = WarmStart(allowed_bytes, estimate, prior or Prior(memory=EXACT), training_steps=training_steps)
    return CostModel(EVERY, SPACE, known)


def off(expected_values: np.ndarray, true: list[float]) -> np.ndarray:
    return np.abs(expected_values - np.array(true))


def test_a_few_measurements_tell_of_all_the_others() -> None:
    tried = [of(4), of(16), of(4, "full"), of(4, "none", "slow")]
    costs = model().costs([seen(candidate, noise=0.001) for candidate in tried])
    errors = off(costs.log_step, [np.log(seconds(candidate)) for candidate in EVERY])
    assert errors.max() < 0.3
    assert (errors < 3 * costs.deviation).all()


def test_longer_samples_are_no_slower_steps() -> None:
    """Micro-steps of twice the tokens took twice the time: the model reads one and the same speed."""
    micro, optimizer = parts(of(8))
    twice = seen(of(8), step_s=2 * 2 * micro + optimizer, tokens=200.0)
    candidate = model().costs([seen(of(4), tokens=100.0), seen(of(8), tokens=100.0)])
    other = model().costs([seen(of(4), tokens=100.0), twice])
    assert other.log_step == pytest.approx(candidate.log_step)


def test_the_offset_of_memory_is_learned_and_the_margin_shrinks() -> None:
    before = model().costs([])
    after = model().costs([seen(candidate) for candidate in (of(4), of(8), of(4, "full"), of(4, "none", "slow"))])
    assert off(after.peak, [float(peak(candidate)) for candidate in EVERY]).max() < 8 * MIB
    assert after.peak_deviation.max() < before.peak_deviation.max() / 4
    assert after.peak_deviation[EVERY.index(of(4))] < 0.01 * peak(of(4))


def test_what_fits_is_nearly_certain_after_a_few_probes() -> None:
    allowed = peak(of(8)) + 20 * MIB
    costs = model(allowed).costs([seen(candidate) for candidate in (of(4), of(2), of(4, "full"))])
    fits = {candidate: float(costs.fits[at]) for at, candidate in enumerate(EVERY)}
    assert fits[of(8)] > 0.95
    assert fits[of(16)] < 0.05
    assert fits[of(16, "full")] == pytest.approx(float(peak(of(16, "full")) <= allowed), abs=0.05)


def test_an_unforeseen_out_of_memory_moves_what_is_expected_of_its_like() -> None:
    tried = [seen(of(4))]
    failed = Observation(of(8, "full"), Outcome.OUT_OF_MEMORY, wanted_bytes=peak(of(8, "full")) + 200 * MIB)
    before, after = model().costs(tried), model().costs([*tried, failed])
    at = EVERY.index(of(8, "full"))
    assert after.peak[at] > before.peak[at] + 20 * MIB
    assert after.peak[EVERY.index(of(16, "full"))] > before.peak[EVERY.index(of(16, "full"))]


def test_what_counts_against_the_limit_and_is_no_part_of_a_peak_is_no_part_of_what_was_wanted() -> None:
    known = WarmStart(1000 * MIB, estimate, Prior(memory=EXACT), untouched_bytes=200 * MIB)
    cost_model = CostModel(EVERY, SPACE, known)
    more, less = (
        Observation(of(8, "full"), Outcome.OUT_OF_MEMORY, wanted_bytes=peak(of(8, "full")) + beyond)
        for beyond in (200 * MIB, 0)
    )
    assert cost_model.costs([seen(of(4)), more]).peak == pytest.approx(model().costs([seen(of(4)), less]).peak)
    assert cost_model.costs([seen(of(4)), more]).peak.max() < model().costs([seen(of(4)), more]).peak.max()


def test_what_ran_to_its_end_did_fit() -> None:
    allowed = peak(of(8)) - 20 * MIB
    before, after = model(allowed).costs([seen(of(4))]), model(allowed).costs([seen(of(4)), seen(of(8))])
    assert (before.allowed_bytes, after.allowed_bytes) == (allowed, peak(of(8)))
    assert before.fits[EVERY.index(of(8))] < 0.1
    assert after.fits[EVERY.index(of(8, "none", "slow"))] > 0.3


def test_a_peak_tells_most_of_its_own_micro_batch_size() -> None:
    own = MemoryPrior(offset_bytes=0.0, value_bytes=0.0, slope=0.0, value=0.0, size=0.05, rest=0.01)
    cost_model = model(prior=Prior(memory=own))
    before, after = cost_model.costs([]), cost_model.costs([seen(of(8), peak_bytes=int(1.1 * estimate(of(8))))])
    moved = (after.peak - before.peak) / before.peak
    assert moved[EVERY.index(of(8, "full"))] > 0.05
    assert moved[EVERY.index(of(8, "full", "slow"))] > 0.05
    assert moved[EVERY.index(of(4))] == pytest.approx(0.0)


def test_effects_that_are_expected_are_there_before_any_probe() -> None:
    effects = {
        "checkpointing": {"full": CostChange(0.3)},
        "optimizer": {"fused": CostChange(0.0, 0.2), "slow": CostChange(0.0, 1.2)},
    }
    costs = model(prior=Prior(effects=effects)).costs([])
    place = {candidate: at for at, candidate in enumerate(EVERY)}
    assert costs.log_micro_step[place[of(4, "full")]] - costs.log_micro_step[place[of(4)]] == pytest.approx(0.3)
    slower = costs.log_optimizer_step[place[of(4, "none", "slow")]] - costs.log_optimizer_step[place[of(4)]]
    assert slower == pytest.approx(1.0)


def test_a_probe_takes_its_start_and_its_steps() -> None:
    observation = seen(of(4), starting_s=3.0, steps=10)
    costs = model().costs([observation])
    micro, optimizer = parts(of(4))
    assert costs.probe_seconds[EVERY.index(of(4))] == pytest.approx(3.0 + 10 * (3 * micro + optimizer), rel=0.05)


def test_what_is_drawn_has_the_means_and_deviations_that_are_told() -> None:
    cost_model = model()
    costs = cost_model.costs([seen(of(4)), seen(of(16, "full"))])
    chosen = np.arange(len(EVERY))
    log_steps, peaks = costs.drawn(chosen, 4000, seed=0)
    assert log_steps.shape == peaks.shape == (4000, len(EVERY))
    assert log_steps.mean(0) == pytest.approx(costs.log_step, abs=4 * costs.deviation.max() / 4000**0.5)
    assert log_steps.std(0) == pytest.approx(costs.deviation, rel=0.1)
    assert peaks.std(0) == pytest.approx(costs.peak_deviation, rel=0.1)
    assert (peaks <= cost_model.allowed_bytes).mean(0) == pytest.approx(costs.fits, abs=0.04)


def test_kernels_and_arithmetic_bound_a_micro_step() -> None:
    """With half speed at 8 samples: twice the arithmetic costs little at a micro-batch of 1 and most of it at 16."""
    work = {"checkpointing": {"full": WorkFactors(arithmetic=2.0)}}
    costs = model(prior=Prior(half_speed=8.0, work=work)).costs([])
    place = {candidate: at for at, candidate in enumerate(EVERY)}
    for micro in (1, 4, 16):
        ratio = np.exp(costs.log_micro_step[place[of(micro, "full")]] - costs.log_micro_step[place[of(micro)]])
        assert ratio == pytest.approx((8 + 2 * micro) / (8 + micro))


def test_short_samples_cost_what_their_batches_are_padded_to() -> None:
    shares = {1: 0.5, 2: 0.7, 4: 0.8, 8: 0.9, 16: 1.0}
    known = WarmStart(
        1000 * MIB, estimate, Prior(half_speed=2.0), padded=lambda candidate: shares[candidate.micro_batch_size]
    )
    made = CostModel(EVERY, SPACE, known)
    steps, place = made.costs([]).log_micro_step, {candidate: at for at, candidate in enumerate(EVERY)}
    for micro, share in shares.items():
        ratio = np.exp(steps[place[of(micro)]] - steps[place[BASE]])
        assert ratio == pytest.approx((2 + share * micro) / (2 + 0.8 * 4))


def test_the_roofline_says_where_a_device_is_half_busy() -> None:
    """1,000 kernels of 12 us take 12 ms, in which 400 TFLOP/s at half the rate do 2.4 TFLOP: 2.4 samples of 1 TFLOP."""
    assert roofline(flops=1e12, kernels=1000, rate=400e12, kernel_s=12e-6) == pytest.approx(2.4)


def drifting(timed: bool) -> list[Observation]:
    """Two sizes in turn, four times, then all others, on a machine that becomes a fifth slower meanwhile."""
    order = [of(4), of(8)] * 4 + [candidate for candidate in EVERY if candidate not in (of(4), of(8))]
    slower = np.linspace(0.0, 0.2, len(order))
    return [
        seen(candidate, 0.002, step_s=seconds(candidate) * np.exp(by), started_s=4.0 * number if timed else None)
        for number, (candidate, by) in enumerate(zip(order, slower, strict=True))
    ]


def test_a_machine_that_becomes_slower_is_not_taken_for_slower_configurations() -> None:
    true = np.log([seconds(candidate) for candidate in EVERY])

    def worst(observations: list[Observation]) -> float:
        errors = model().costs(observations).log_step - true
        return float(np.ptp(errors))

    timed, untimed = worst(drifting(True)), worst(drifting(False))
    assert timed < 0.9 * untimed
    assert model().costs(drifting(True)).times.drift > 0.02


def test_what_a_measurement_would_teach_is_what_it_teaches() -> None:
    """A micro-step a little slower than expected moves the mean by as much as was foretold."""
    known, at, before = (
        model(prior=Prior(memory=EXACT, spread=None, own=0.0)),
        EVERY.index(of(16)),
        [seen(of(4)), seen(of(8))],
    )
    costs = known.costs(before)
    ((_, moved),) = costs.posterior_shift(np.array([at]), None, (1,))
    foretold = float(moved[0, 0, 0, 0]) / float(costs.micro_share[at])
    micro, update = np.exp(costs.log_micro_step[at]), float(np.exp(costs.log_optimizer_step[at]))
    deviation = np.sqrt(
        foretold**2 / 2 + np.sqrt(foretold**4 / 4 + foretold**2 * costs.noise**2)
    )  # before the measurement
    slower = float(micro * np.exp(0.01 * np.hypot(deviation, costs.noise)))
    after = known.costs([*before, seen(of(16), step_s=slower + update, optimizer_step_s=update)])
    assert after.log_micro_step[at] - costs.log_micro_step[at] == pytest.approx(0.01 * foretold, rel=1e-3)
