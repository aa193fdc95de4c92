"""What is chosen next on small worlds, and whether what is said at the end is true there."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from autotune.core import Configuration, Outcome
from autotune.sampler.acquisition import FIRST_TRIED, P_FIT_LIKELY, P_FIT_RISKY, _believed, propose
from autotune.sampler.cost_model import CostModel
from autotune.sampler.observation import Observation
from autotune.sampler.prior import Effect, Learned, Prior
from autotune.space.settings import Work
from tests.makers import MIB
from tests.sampler.test_cost_model import BASE, EVERY, EXACT, model, of, peak, seconds, seen


def nothing_settled(candidate: Configuration) -> bool:
    return False


def world(candidate: Configuration, allowed: int) -> Observation:
    if peak(candidate) > allowed:
        return Observation(candidate, Outcome.OUT_OF_MEMORY, wanted_bytes=allowed + MIB)
    return seen(candidate, starting_s=1.0, steps=8)


def searched(allowed: int, most: int = 20, objective: str = "samples_per_second") -> tuple[list[Observation], float]:
    """Probes until nothing can win more than a percent, the baseline first; (observations, what could still be won)."""
    cost_model = model(allowed)
    observations = [world(BASE, allowed)]
    for seed in range(most):
        choice = propose(cost_model, observations, nothing_settled, objective, seed=seed)
        if choice.configuration is None or (len(observations) > 2 and choice.max_gain <= 0.01):
            return observations, choice.max_gain
        observations.append(world(choice.configuration, allowed))
    return observations, choice.max_gain


@pytest.mark.parametrize("allowed", [peak(of(8)) + 5 * MIB, peak(of(16)) + 5 * MIB, peak(of(4)) + 30 * MIB])
def test_the_fastest_that_fits_is_found_without_running_out_of_memory(allowed: int) -> None:
    observations, max_gain = searched(allowed)
    fastest = min((candidate for candidate in EVERY if peak(candidate) <= allowed), key=seconds)
    assert fastest in [candidate.configuration for candidate in observations]
    assert max_gain <= 0.01
    assert len(observations) <= 10
    assert sum(candidate.outcome is Outcome.OUT_OF_MEMORY for candidate in observations) <= 1


def test_the_second_probe_is_what_is_expected_to_be_fastest() -> None:
    choice = propose(model(), [seen(BASE)], nothing_settled)
    assert choice.configuration == of(16)


def test_nothing_is_probed_twice_and_nothing_that_is_settled() -> None:
    tried = [seen(candidate) for candidate in EVERY[:10]]
    choice = propose(model(), tried, lambda candidate: candidate != of(16, "full", "slow"))
    assert choice.configuration == of(16, "full", "slow")
    assert propose(model(), tried, lambda candidate: True).configuration is None
    exhausted = propose(model(), [seen(candidate) for candidate in EVERY], nothing_settled)
    assert (exhausted.configuration, exhausted.max_gain) == (None, 0.0)


def test_what_another_worker_probes_is_not_proposed_and_neither_is_its_twin() -> None:
    first = propose(model(), [seen(BASE)], nothing_settled).configuration
    assert first is not None
    others: list[Configuration] = [first]
    for _ in range(5):
        following = propose(model(), [seen(BASE)], nothing_settled, running=others).configuration
        assert following is not None
        assert following not in others
        others.append(following)


def test_where_nothing_surely_fits_the_likeliest_is_tried() -> None:
    allowed = peak(of(1, "full")) - 20 * MIB
    failed = [Observation(BASE, Outcome.OUT_OF_MEMORY, wanted_bytes=allowed + 60 * MIB)]
    choice = propose(model(allowed), failed, nothing_settled)
    assert choice.configuration is not None
    assert peak(choice.configuration) < peak(BASE)
    assert choice.max_gain == float("inf")


def test_the_least_memory_is_found_among_what_is_as_fast_as_the_baseline() -> None:
    observations, _ = searched(2000 * MIB, objective="memory")
    as_fast = [candidate for candidate in EVERY if seconds(candidate) <= 1.01 * seconds(BASE)]
    least = min(map(peak, as_fast))
    assert (
        min(peak(candidate.configuration) for candidate in observations if candidate.configuration in as_fast) == least
    )


def test_what_could_win_shrinks_with_each_probe_of_the_best_ones() -> None:
    def max_gain(tried: Sequence[Configuration]) -> float:
        return propose(model(), [seen(candidate) for candidate in tried], nothing_settled).max_gain

    several = [BASE, of(16), of(8), of(16, "full")]
    assert max_gain(several[:2]) > max_gain(several) > 0


def test_while_nothing_is_known_to_fit_what_is_likely_to_comes_before_what_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What surely fits is settled by what the baseline could not do; then comes the likely, the best of it first."""
    allowed = peak(of(1, "full"))
    cost_model, failed = model(allowed), [Observation(BASE, Outcome.OUT_OF_MEMORY, wanted_bytes=allowed + 60 * MIB)]
    fits = cost_model.costs(failed).fits
    monkeypatch.setattr("autotune.sampler.acquisition.P_FIT_LIKELY", float(np.sort(fits)[-6]))
    monkeypatch.setattr("autotune.sampler.acquisition.P_FIT_CERTAIN", float(np.sort(fits)[-3]))
    surest = [EVERY[at] for at in np.argsort(-fits)]
    choice = propose(cost_model, failed, lambda candidate: candidate in surest[:3])
    assert choice.configuration in surest[3:6]


def test_what_runs_elsewhere_is_believed_to_take_as_long_as_its_steps_do() -> None:
    """The seconds of its start are no part of them, which are spread over the run."""
    values = {"micro_batch_size": (4, 8), "compile": ("none", "default")}
    ones = [
        Configuration.exact(16, *candidate)
        for candidate in product((4, 8), ({"compile": v} for v in values["compile"]))
    ]
    cost_model = CostModel(
        ones, values, ones[0], Prior(memory=EXACT), lambda candidate: 1.0, 1000 * MIB, training_steps=100
    )
    tried = [Observation(ones[0], Outcome.COMPLETED, 1.0, 0.1, noise=0.01, peak_bytes=MIB, feasible=True)]
    alone = cost_model.costs(tried)
    believed = cost_model.costs([*tried, _believed(cost_model, alone, ones[1])])
    assert believed.log_step == pytest.approx(alone.log_step, abs=0.002)


def test_what_looks_hopeless_is_tried_before_all_is_called_known() -> None:
    allowed = peak(of(1, "full")) - 40 * MIB
    failed = [Observation(BASE, Outcome.OUT_OF_MEMORY, wanted_bytes=allowed + 60 * MIB)]
    settled = {candidate for candidate in EVERY if candidate.micro_batch_size < 4}
    choice = propose(model(allowed), failed, lambda candidate: candidate in settled)
    assert choice.configuration is not None
    assert choice.configuration not in settled


def test_what_probably_does_not_fit_counts_as_far_as_it_may_fit_after_all() -> None:
    """16 without checkpointing is fastest; it lies just above the limit or far above it."""
    tried = [seen(candidate) for candidate in EVERY if candidate.micro_batch_size < 16]
    limits = [peak(of(16)) - MIB // 2, peak(of(16)) - 100 * MIB]
    near, far = (
        propose(model(limit), tried, lambda candidate: "full" in candidate.values.values()) for limit in limits
    )
    assert near.configuration is None
    assert near.max_gain_if_fits > 0.01 > near.max_gain
    assert far.max_gain_if_fits == far.max_gain == 0.0


def test_what_could_win_counts_what_is_only_likely_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """While what surely fits is probed, the bound speaks of the rest too."""
    allowed, tried = peak(of(8)) + 5 * MIB, [seen(BASE), seen(of(2)), seen(of(1))]
    both = propose(model(allowed), tried, nothing_settled).max_gain
    monkeypatch.setattr("autotune.sampler.acquisition.P_FIT_LIKELY", 0.9)
    assert both >= propose(model(allowed), tried, nothing_settled).max_gain > 0


def test_a_risk_is_taken_once_something_fits_and_nothing_safe_is_left_to_win() -> None:
    """16 without checkpointing is fastest; whether it fits is even."""
    tried = [seen(candidate, starting_s=1.0, steps=8) for candidate in EVERY if candidate.micro_batch_size < 16]
    cost_model = model(peak(of(16)))

    def settled(candidate: Configuration) -> bool:
        return "full" in candidate.values.values()

    chance = float(cost_model.costs(tried).fits[EVERY.index(of(16))])
    assert P_FIT_RISKY < chance < P_FIT_LIKELY
    assert propose(cost_model, tried, settled).configuration is None
    risk = propose(cost_model, tried, settled, risks=1)
    assert (risk.configuration, risk.risky, risk.fits) == (of(16), True, pytest.approx(chance))
    assert risk.can_win(0.01)
    safe = propose(cost_model, tried[:3], nothing_settled, risks=2)
    assert not safe.risky, "what is likely to fit comes first"
    starved = [Observation(seen.configuration, Outcome.OUT_OF_MEMORY, wanted_bytes=peak(of(16))) for seen in tried[:3]]
    assert not propose(cost_model, starved, nothing_settled, risks=2).risky, "nothing fits yet"


def test_what_is_expected_to_be_worth_much_is_among_the_first_probes_whatever_other_models_showed() -> None:
    work = {"checkpointing": {"none": Work(), "full": Work(arithmetic=0.5)}}
    learned = {"checkpointing": {"full": Learned(Effect(2.0), Effect(0.1, 0.1, MIB))}}
    cost_model = model(prior=Prior(memory=EXACT, work=work, learned=learned))
    tried = [seen(BASE)]
    while len(tried) < FIRST_TRIED:
        chosen = propose(cost_model, tried, nothing_settled).configuration
        assert chosen is not None
        tried.append(seen(chosen))
    assert [candidate.configuration.values["checkpointing"] for candidate in tried][-1] == "full"
    chosen = propose(cost_model, [seen(BASE)], nothing_settled, probes_left=1).configuration
    assert chosen is not None
    assert chosen.values["checkpointing"] == "full", "there is time for one"
