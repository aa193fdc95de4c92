"""What is measured next on small worlds: something new, something again, the proof, or nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.judge.constants import LOOKS
from autotune.judge.observation import Observation
from autotune.judge.standing import Standing
from autotune.sampler.constants import COMPARED, FIRST_TRIED, MOST_BEGUN, P_FIT_LIKELY, P_FIT_RISKY
from autotune.sampler.cost_model import CostModel
from autotune.sampler.policy import Choice, End, Why, choose
from autotune.sampler.prior import Learned, Prior
from autotune.sampler.situation import Situation
from autotune.space.settings import CostChange, WorkFactors
from tests.makers import MIB, completed, ended
from tests.sampler.test_cost_model import BASE, EVERY, EXACT, model, of, peak, seconds, seen

FASTEST, RIVAL, HUGE = of(16), of(8), 1000 * MIB
PROBE_S = 5.0
"""Seconds of each measurement."""


def measured(candidate: Configuration, number: float, error: float = 0.0, **facts: object) -> Observation:
    """The measurement of this number on the device."""
    usual = {"step_s": seconds(candidate) * math.exp(error), "starting_s": 2.0, "steps": 8, "seconds": PROBE_S}
    return seen(candidate, **{"noise": 0.002, **usual, "started_s": PROBE_S * number} | facts)  # type: ignore[arg-type]


def in_turn(*several: Configuration, errors: Sequence[float] = (), **facts: object) -> list[Observation]:
    """One measurement after the other."""
    errors = [*errors, *[0.0] * (len(several) - len(errors))]
    pairs = zip(several, errors, strict=True)
    return [measured(candidate, number, error, **facts) for number, (candidate, error) in enumerate(pairs)]


def out_of_memory(
    candidate: Configuration, number: float = 0, wanted: int = HUGE + MIB, **facts: object
) -> Observation:
    usual = {"wanted_bytes": wanted, "seconds": PROBE_S, "started_s": PROBE_S * number}
    return Observation(candidate, Outcome.OUT_OF_MEMORY, **usual | facts)  # type: ignore[arg-type]


def trials_of(several: Sequence[Observation]) -> tuple[Trial, ...]:
    """The trials that these are of, the baseline first: its first measurement, then its rounds."""
    configurations = dict.fromkeys([BASE, *(each.configuration for each in several)])
    by_trial = ([each for each in several if each.configuration == candidate] for candidate in configurations)
    trials = ([measurement(each, number) for number, each in enumerate(its)] for its in by_trial)
    numbered = enumerate(zip(configurations, trials, strict=True))
    return tuple(Trial(number, of, its[0], tuple(its[1:])) for number, (of, its) in numbered if its)


def measurement(seen: Observation, number: int) -> Measurement:
    """The measurement that shows this, of the round that it names or of this one."""
    facts = {"started_s": seen.started_s, "probe_seconds": seen.seconds, "device": seen.device}
    facts |= {"round": seen.round or number, "ended_early": seen.ended_early}
    if seen.step_s is None:
        return ended(seen.outcome, **facts)
    return completed(seen.configuration, 16 / seen.step_s, seen.peak_bytes or 0, 0.0, **facts)


def next_round(several: Sequence[Observation], choice: Choice) -> int:
    """The number of the round that a search makes of this choice; 0 of a new configuration."""
    if choice.why is not Why.PROVE:
        return count(several, choice.configuration)
    last = max(each.round for each in several if each.configuration in (BASE, choice.winner))
    return choice.round or last + 1


def chosen(
    several: Sequence[Observation],
    cost_model: CostModel | None = None,
    implied: Callable[[Configuration], bool] = lambda candidate: False,
    barred: Sequence[Configuration] = (),
    **facts: object,
) -> Choice:
    """The choice after these, in two hours of training unless the model says how long it is."""
    standing = Standing(trials_of(several))
    vars(standing).update(observations=[*several], barred=[*barred], rules_out=implied)
    situation = Situation(**{"at_s": PROBE_S * len(several), **facts})  # type: ignore[arg-type]
    return choose(cost_model or model(), standing, situation)


def searched(
    noise: float = 0.002, allowed: int = HUGE, most: int = 60, cost_model: CostModel | None = None, **facts: object
) -> tuple[list[Observation], list[Choice]]:
    """A whole search of a machine on which processes differ by this noise, the last choice for nothing."""
    rng, choices, several = np.random.default_rng(0), list[Choice](), list[Observation]()
    candidate: Configuration | None = BASE
    while candidate is not None:
        number = len(several)
        assert number < most
        error, again = noise * rng.standard_normal(), next_round(several, choices[-1]) if several else 0
        fits = peak(candidate) <= allowed
        several.append(
            measured(candidate, number, error, noise=noise, round=again)
            if fits
            else out_of_memory(candidate, number, allowed + MIB)
        )
        choices.append(chosen(several, cost_model or model(allowed), **facts))
        candidate = choices[-1].configuration
    return several, choices


def count(several: Sequence[Observation], candidate: Configuration | None) -> int:
    return [each.configuration for each in several].count(candidate)


def all_but(*candidates: Configuration) -> Callable[[Configuration], bool]:
    """All others are ruled out."""
    return lambda candidate: candidate not in candidates


NOTHING_NEW = all_but()


# Whole searches -------------------------------------------------------------------------------------------------


def test_a_search_ends_with_the_fastest_proven_side_by_side() -> None:
    several, choices = searched(0.005)
    end = choices[-1]
    assert (end.configuration, end.why, end.winner) == (None, None, FASTEST)
    assert end.end in (End.GAIN, End.WORTH)
    assert end.claim is not None
    assert end.claim.low > 1
    assert end.claim.low <= seconds(BASE) / seconds(FASTEST) <= end.claim.high
    assert [count(several, each) for each in (BASE, FASTEST)] == [1 + min(LOOKS)] * 2, "no first one counts"
    proof = [number for number, choice in enumerate(choices) if choice.why is Why.PROVE]
    assert proof == list(range(proof[0], len(choices) - 1)), "it comes last"
    assert len(several) <= 12


@pytest.mark.parametrize("allowed", [peak(of(8)) + 5 * MIB, peak(of(16)) + 5 * MIB, peak(of(4)) + 30 * MIB])
def test_the_fastest_that_fits_wins_and_hardly_anything_runs_out_of_memory(allowed: int) -> None:
    several, choices = searched(allowed=allowed)
    end = choices[-1]
    assert end.winner == min((candidate for candidate in EVERY if peak(candidate) <= allowed), key=seconds)
    assert end.max_gain <= 0.01
    assert len({each.configuration for each in several}) <= 10
    assert sum(each.outcome is Outcome.OUT_OF_MEMORY for each in several) <= 1


def test_without_a_baseline_that_runs_the_fastest_wins_and_nothing_is_proven() -> None:
    several = [Observation(BASE, Outcome.CRASHED, seconds=PROBE_S, started_s=0.0)]
    choices = [chosen(several)]
    while (candidate := choices[-1].configuration) is not None:
        several.append(measured(candidate, len(several)))
        choices.append(chosen(several))
    assert Why.PROVE not in [choice.why for choice in choices]
    assert (choices[-1].winner, choices[-1].claim) == (FASTEST, None)
    assert count(several, BASE) == 1
    assert count(several, FASTEST) == 1, "a quiet machine"


def test_a_margin_of_zero_tries_all() -> None:
    several, choices = searched(margin=0.0)
    assert {each.configuration for each in several} == set(EVERY)
    assert (choices[-1].end, choices[-1].max_gain) == (End.ALL, 0.0)


# The first probes -----------------------------------------------------------------------------------------------


def test_the_second_probe_is_expected_to_be_the_fastest() -> None:
    choice = chosen(in_turn(BASE))
    assert (choice.configuration, choice.why, choice.risky) == (FASTEST, Why.NEW, False)
    assert choice.gain > 0
    assert choice.seconds == pytest.approx(2.0 + 8 * 0.22, rel=0.5)


def test_a_promising_setting_is_among_the_first_probes_whatever_other_models_showed() -> None:
    work = {"checkpointing": {"none": WorkFactors(), "full": WorkFactors(arithmetic=0.5)}}
    learned = {"checkpointing": {"full": Learned(CostChange(math.log(2)), CostChange(0.15, 0.1, MIB))}}
    cost_model = model(prior=Prior(memory=EXACT, work=work, learned=learned))
    several = in_turn(BASE)
    while len(several) < FIRST_TRIED:
        choice = chosen(several, cost_model)
        assert choice.configuration is not None
        assert choice.why is Why.NEW
        several.append(measured(choice.configuration, len(several)))
    assert "full" in [each.configuration.values["checkpointing"] for each in several]
    last = chosen(several[:1], cost_model, probes_left=1).configuration
    assert last is not None
    assert last.values["checkpointing"] == "full", "it is the last one"
    together = chosen(in_turn(BASE), model(prior=Prior(memory=EXACT, work=work)), seconds_left=6.0)
    assert (together.why, together.configuration) == (Why.NEW, of(16, "full")), "all that is promising"


def test_nothing_is_chosen_twice_as_new_nor_ruled_out() -> None:
    several, last = in_turn(*EVERY[:10]), of(16, "full", "slow")
    choice = chosen(several, implied=all_but(last), margin=0.0)
    assert (choice.configuration, choice.why) == (last, Why.NEW)
    assert chosen(several, implied=NOTHING_NEW, margin=0.0).why is not Why.NEW
    end = chosen(in_turn(*EVERY), run_s=1e-9)
    assert (end.configuration, end.end, end.untried, end.max_gain, end.max_gain_if_fits) == (None, End.ALL, 0, 0.0, 0.0)


# What fits ------------------------------------------------------------------------------------------------------


def test_if_nothing_fits_everything_is_tried_before_the_end() -> None:
    allowed = peak(of(1, "full")) - 40 * MIB
    failed = [out_of_memory(BASE, wanted=allowed + 60 * MIB)]
    large = [candidate for candidate in EVERY if candidate.micro_batch_size >= 4]
    assert chosen(failed, model(allowed), implied=all_but(*large)).configuration in large
    assert chosen(failed, model(allowed), implied=NOTHING_NEW).end is End.ALL
    assert chosen(failed, model(allowed), probes_left=0).end is End.PROBES


def test_if_nothing_fits_nothing_begins_that_does_not_end_in_time() -> None:
    failed = [out_of_memory(BASE)]
    assert chosen(failed, seconds_left=1.1 * PROBE_S).why is Why.NEW
    assert chosen(failed, seconds_left=0.5 * PROBE_S).end is End.TIME
    assert chosen(failed, seconds_left=0.0).end is End.TIME


def test_what_probably_does_not_fit_counts_as_far_as_it_may_fit_after_all() -> None:
    """The fastest lies just above the limit, or far above it."""
    several = in_turn(*(candidate for candidate in EVERY if candidate.micro_batch_size < 16))
    near, far = (
        chosen(several, model(peak(FASTEST) - below), implied=all_but(FASTEST), run_s=1e-9)
        for below in (MIB // 2, 100 * MIB)
    )
    assert near.configuration is None
    assert near.max_gain_if_fits > 0.01 > near.max_gain
    assert far.max_gain_if_fits == far.max_gain == 0.0


def test_a_risk_is_taken_if_nothing_safe_is_left_to_win() -> None:
    """The fastest fits as likely as not."""
    several = in_turn(*(candidate for candidate in EVERY if candidate.micro_batch_size < 16))
    cost_model, fastest_alone = model(peak(FASTEST)), all_but(FASTEST)
    chance = float(cost_model.costs(several).fits[EVERY.index(FASTEST)])
    assert P_FIT_RISKY < chance < P_FIT_LIKELY
    assert chosen(several, cost_model, implied=fastest_alone).why is not Why.NEW
    risk = chosen(several, cost_model, implied=fastest_alone, risks=1)
    assert (risk.configuration, risk.why, risk.risky, risk.fits) == (FASTEST, Why.NEW, True, pytest.approx(chance))
    assert not chosen(several[:3], cost_model, risks=2).risky, "what is likely to fit comes first"
    starved = [out_of_memory(each.configuration, number, peak(FASTEST)) for number, each in enumerate(several[:3])]
    assert not chosen(starved, cost_model, risks=2).risky, "nothing fits yet"


# How long the training is ---------------------------------------------------------------------------------------


def test_a_very_short_training_is_worth_no_probe_and_the_promising_one_is_named() -> None:
    end = chosen(in_turn(BASE), model(training_steps=10))
    assert (end.configuration, end.end, end.winner, end.promising) == (None, End.WORTH, BASE, FASTEST)
    assert end.seconds > 0
    assert end.max_gain > 0.01


def test_the_longer_the_training_the_more_is_measured_and_it_ends() -> None:
    lengths = [len(searched(0.02, cost_model=model(training_steps=steps))[0]) for steps in (10, 1000, 1_000_000)]
    assert lengths[0] == 1
    assert lengths == sorted(lengths)
    assert lengths[1] < lengths[2] <= 40


# Measured again -------------------------------------------------------------------------------------------------


def even() -> list[Observation]:
    """All were measured on a noisy machine, the fastest two as fast as each other."""
    errors = [float(error) for error in 0.05 * np.random.default_rng(0).standard_normal(len(EVERY))]
    errors[EVERY.index(FASTEST)] = errors[EVERY.index(RIVAL)] + math.log(seconds(RIVAL) / seconds(FASTEST))
    return in_turn(*EVERY, noise=0.05, errors=errors)


def test_what_cannot_be_told_apart_is_measured_again() -> None:
    choice = chosen(even(), run_s=36_000.0)
    assert choice.why is Why.COMPARE
    assert choice.configuration in (FASTEST, RIVAL)
    second = chosen(even(), run_s=36_000.0, running={"1": choice.configuration})
    assert (second.why, second.configuration == choice.configuration) == (Why.COMPARE, False), "which is measured there"
    quiet = chosen(in_turn(*EVERY), run_s=36_000.0)
    assert quiet.why is Why.PROVE, "known well enough, the fastest is proven"


def test_what_many_measurements_did_not_tell_is_not_compared_for_ever() -> None:
    """The baseline does not run, so that the two fastest are compared."""
    rng, shift = np.random.default_rng(0), math.log(seconds(RIVAL) / seconds(FASTEST))

    def after(times: int) -> Choice:
        errors = 0.3 * rng.standard_normal((times, 2))
        errors += [0.0, shift - 0.02] - errors.mean(0)
        several = in_turn(*[RIVAL, FASTEST] * times, errors=[*errors.ravel()], noise=0.3)
        failed = Observation(BASE, Outcome.CRASHED, started_s=0.0)
        return chosen([failed, *several], implied=NOTHING_NEW, run_s=1e9)

    assert after(COMPARED - 1).why is Why.COMPARE
    assert after(COMPARED).configuration is None


@pytest.mark.parametrize(("times", "why"), [(MOST_BEGUN, Why.PROVE), (MOST_BEGUN + 1, None)])
def test_a_proof_whose_pairs_fall_apart_is_not_begun_for_ever(times: int, why: Why | None) -> None:
    several = [measured(each, 20 * number) for number, each in enumerate([BASE, FASTEST] * times)]
    assert chosen(several, implied=NOTHING_NEW, at_s=PROBE_S * 20 * len(several), run_s=1e6).why is why


def test_a_proof_begins_once_nothing_new_is_worth_it_and_its_open_pair_goes_before_comparisons() -> None:
    """On a noisy machine a single measurement of each shows nothing; the last untried one may win little."""
    *several, last = EVERY
    for noise in (0.002, 0.1):
        assert chosen(in_turn(*several, noise=noise), margin=0.0).configuration == last
    compared = even()
    assert chosen(compared, run_s=36_000.0).why is Why.COMPARE
    begun = measured(BASE, len(EVERY), noise=0.05)
    choice = chosen([*compared, begun], run_s=36_000.0)
    assert (choice.why, choice.configuration, choice.round) == (Why.PROVE, choice.winner, 1)


def test_a_proof_is_of_pairs_that_are_neighbours_in_time() -> None:
    """Both were measured again, the baseline an hour ago: a new pair begins with what was measured last."""
    several = [measured(BASE, 0), measured(BASE, 1), measured(FASTEST, 700), measured(FASTEST, 701)]
    for number, following, open_round in ((702, FASTEST, 0), (703, BASE, 2), (704, BASE, 0), (705, FASTEST, 3)):
        choice = chosen(several, implied=NOTHING_NEW, at_s=PROBE_S * number)
        assert (choice.why, choice.configuration, choice.round) == (Why.PROVE, following, open_round)
        assert choice.claim is None
        several.append(measured(following, number, round=number // 2 - 349))


def test_a_proof_ends_at_the_first_look_that_shows_it_with_as_many_pairs_as_are_asked_for() -> None:
    several = in_turn(BASE, FASTEST, FASTEST, BASE, BASE, FASTEST)
    end = chosen(several, probes_left=0)
    assert (end.configuration, end.end, end.winner) == (None, End.PROBES, FASTEST)
    assert end.claim == pytest.approx(seconds(BASE) / seconds(FASTEST))
    assert chosen(several, implied=NOTHING_NEW, min_repeats=3).why is Why.PROVE, "it needs more of each"


def test_if_nothing_is_measured_again_everything_new_that_is_worth_it_still_is() -> None:
    again, _ = searched(noise=0.05)
    several, choices = searched(noise=0.05, min_repeats=0)
    assert len({each.configuration for each in several}) == len(several) < len(again)
    assert {choice.why for choice in choices[:-1]} == {Why.NEW}
    assert (choices[-1].end, chosen(several, min_repeats=0, probes_left=0).end) == (End.GAIN, End.PROBES)


def test_a_rival_that_fell_out_does_not_leave_the_baseline_measured_alone() -> None:
    """It ran out of memory when it was measured again, and nothing else may be measured; or the next best is proven."""
    several = [*in_turn(BASE, FASTEST, BASE), out_of_memory(FASTEST, 3)]
    choice = chosen(several, implied=NOTHING_NEW)
    assert (choice.configuration, choice.winner, choice.end) == (None, BASE, End.GAIN)
    several = [*in_turn(BASE, FASTEST, RIVAL, BASE), out_of_memory(FASTEST, 4)]
    choice = chosen(several, implied=NOTHING_NEW)
    assert (choice.winner, choice.why, choice.configuration) == (RIVAL, Why.PROVE, RIVAL)


def test_a_changed_setting_that_does_not_help_is_dropped() -> None:
    """A second change of the same speed: neither it nor what has it is handed out."""
    more, fewer = of(16, "full"), FASTEST
    even = math.log(seconds(fewer) / seconds(more)) - 0.0005
    assert chosen(in_turn(BASE, more, fewer, errors=[0.0, even])).winner == fewer


def test_what_is_disqualified_is_neither_handed_out_nor_measured_again() -> None:
    choice = chosen(in_turn(*EVERY), barred=[FASTEST])
    assert (choice.winner, choice.why) == (RIVAL, Why.PROVE)
    assert choice.configuration in (RIVAL, BASE)


def test_what_ended_early_is_not_measured_again() -> None:
    cut = measured(FASTEST, 1, ended_early=True)
    choice = chosen([measured(BASE, 0), cut], implied=NOTHING_NEW)
    assert (choice.configuration, choice.winner) == (None, BASE)


# Time limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [3, 6, 12])
def test_a_search_ends_in_time_with_its_winner_proven_if_it_is_long_enough(limit: int) -> None:
    several = in_turn(BASE)
    while (choice := chosen(several, seconds_left=PROBE_S * (limit - len(several)))).configuration is not None:
        several.append(measured(choice.configuration, len(several), round=next_round(several, choice)))
    assert len(several) <= limit
    is_long = limit >= 12
    assert choice.end is not End.TIME if is_long else choice.end is End.TIME
    assert not is_long or (choice.winner == FASTEST and choice.claim is not None and choice.claim.low > 1)
    over = chosen(several[:2], seconds_left=0.0)
    assert (over.configuration, over.end) == (None, End.TIME)


def test_seconds_of_another_measurement_may_be_others_than_of_the_first() -> None:
    """A proof of longer measurements does not end in time."""
    several, left = in_turn(BASE, FASTEST), 4.8 * PROBE_S
    assert chosen(several, seconds_left=left, implied=NOTHING_NEW).why is Why.PROVE
    longer = dict.fromkeys((BASE, FASTEST), 4 * PROBE_S)
    assert chosen(several, seconds_left=left, implied=NOTHING_NEW, repeat_seconds=longer).end is End.TIME


# Several devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_what_others_measure_now_is_not_chosen(noise: float) -> None:
    several, running = in_turn(BASE, FASTEST, noise=noise, device="0"), dict[str, Configuration]()
    for device in "01234":
        candidate = chosen(several, running=running, device=device).configuration
        assert candidate is not None
        assert candidate not in running.values()
        running[device] = candidate


ON_ZERO = [measured(candidate, number, device="0") for number, candidate in enumerate((BASE, FASTEST))]


def test_a_proof_goes_on_where_one_of_the_two_was_measured_just_now() -> None:
    for last, following in ((BASE, FASTEST), (FASTEST, BASE)):
        several = [*ON_ZERO, measured(last, 2, 0.1, device="1")]
        choice = chosen(several, implied=NOTHING_NEW, device="1", at_s=3 * PROBE_S)
        assert (choice.why, choice.configuration) == (Why.PROVE, following)


def test_pairs_of_several_devices_prove_together() -> None:
    """Device 1 is a tenth slower. A round of each on another device is no pair."""
    rounds = [
        measured(candidate, 2 + number, error, device=device, round=1 + number // 2)
        for number, (candidate, error, device) in enumerate(
            [(FASTEST, 0.0, "0"), (BASE, 0.0, "0"), (FASTEST, 0.1, "1"), (BASE, 0.1, "1")]
        )
    ]
    end = chosen([*ON_ZERO, *rounds], implied=NOTHING_NEW, device="1")
    assert (end.configuration, end.winner) == (None, FASTEST)
    assert end.claim == pytest.approx(seconds(BASE) / seconds(FASTEST))
    moved = [replace(each, device="01"[number % 2]) for number, each in enumerate(rounds)]
    assert chosen([*ON_ZERO, *moved], implied=NOTHING_NEW, device="1").claim is None


def test_nothing_is_measured_while_what_runs_may_prove_it() -> None:
    several = [*ON_ZERO, measured(BASE, 2, device="0")]
    facts = {"implied": NOTHING_NEW, "device": "1"}
    assert chosen(several, **facts).why is Why.PROVE
    assert chosen(several, running={"0": FASTEST}, **facts).configuration is None
    assert chosen(several, running={"0": RIVAL}, **facts).why is Why.PROVE


def test_what_can_still_be_proven_goes_before_what_is_a_little_faster() -> None:
    others = [each for each in EVERY if each not in (BASE, FASTEST, RIVAL)]
    several = in_turn(BASE, *others[:5], FASTEST, *others[5:9], RIVAL, BASE, RIVAL)
    unhurried = chosen(several, seconds_left=5 * PROBE_S, implied=NOTHING_NEW)
    assert (unhurried.winner, unhurried.configuration) == (FASTEST, FASTEST)
    hurried = chosen(several, seconds_left=2.2 * PROBE_S, implied=NOTHING_NEW)
    assert (hurried.winner, hurried.configuration, hurried.why) == (RIVAL, RIVAL, Why.PROVE)
    over = chosen(several, seconds_left=0.1 * PROBE_S, implied=NOTHING_NEW)
    assert (over.winner, over.end) == (FASTEST, End.TIME)
