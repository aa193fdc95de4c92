"""What is measured next on small worlds: something new, something again, the proof, or nothing."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.core import Configuration, Outcome
from autotune.sampler.observation import Observation
from autotune.sampler.claim import EACH
from autotune.sampler.policy import Choice, End, Why, choose
from tests.makers import MIB
from tests.sampler.test_cost_model import BASE, EVERY, model, of, seconds, seen

FASTEST, RIVAL = of(16), of(8)


def in_turn(*ones: Configuration, noise: float = 0.002, errors: Sequence[float] = ()) -> list[Observation]:
    """One measurement after the other, of five seconds each."""
    errors = [*errors, *[0.0] * (len(ones) - len(errors))]
    return [
        replace(
            seen(one, noise, step_s=seconds(one) * np.exp(error), starting_s=2.0, steps=8),
            started_s=5.0 * number,
            seconds=5.0,
        )
        for number, (one, error) in enumerate(zip(ones, errors, strict=True))
    ]


def chosen(measured: Sequence[Observation], allowed: int = 1000 * MIB, **facts: object) -> Choice:
    facts = {"at_s": 5.0 * len(measured), "run_s": 3600.0, **facts}
    return choose(model(allowed), measured, **facts)  # type: ignore[arg-type]


def searched(noise: float, most: int = 40, **facts: object) -> tuple[list[Observation], Choice, list[Choice]]:
    """A whole search of a machine on which processes differ by this noise."""
    rng, choices = np.random.default_rng(0), []
    measured = in_turn(BASE, noise=noise, errors=[noise * rng.standard_normal()])
    while len(measured) < most:
        choices.append(chosen(measured, **facts))
        if (one := choices[-1].configuration) is None:
            break
        measured += [
            replace(*in_turn(one, noise=noise, errors=[noise * rng.standard_normal()]), started_s=5.0 * len(measured))
        ]
    return measured, choices[-1], choices


def test_a_search_ends_with_the_fastest_proven_by_neighbouring_measurements() -> None:
    measured, last, choices = searched(0.005)
    assert (last.configuration, last.winner) == (None, FASTEST)
    assert last.claim is not None
    assert last.claim.low > 1
    assert last.claim.low <= seconds(BASE) / seconds(FASTEST) <= last.claim.high
    order = [seen.configuration for seen in measured]
    assert order.count(FASTEST) >= EACH
    assert order.count(BASE) >= EACH
    proof = [number for number, choice in enumerate(choices) if choice.why is Why.PROVE]
    assert proof == list(range(proof[0], len(choices) - 1)), "it comes last"
    assert len(measured) <= 12


def test_what_cannot_be_told_apart_is_measured_again() -> None:
    even = [float(np.log(seconds(RIVAL) / seconds(FASTEST))) if one == FASTEST else 0.0 for one in EVERY]
    choice = chosen(in_turn(*EVERY, noise=0.05, errors=even), run_s=36_000.0)
    assert choice.why is Why.COMPARE
    assert choice.configuration in (FASTEST, RIVAL)
    quiet = chosen(in_turn(*EVERY), run_s=36_000.0)
    assert quiet.why is Why.PROVE, "known well enough, the fastest is proven"


def test_a_machine_that_drifts_makes_a_neighbour_in_time_tell_more() -> None:
    """The rival of what was measured just now is worth measuring now, not an hour later."""
    rng = np.random.default_rng(1)
    order = [*[BASE, RIVAL] * 15, FASTEST]
    measured = in_turn(*order, errors=np.cumsum(0.05 * rng.standard_normal(len(order))))
    costs = model().costs(measured)
    assert costs.times.drift > 0.02
    places = np.array([EVERY.index(FASTEST), EVERY.index(RIVAL)])

    def told(at_s: float) -> float:
        parts = costs.taught(places, at_s, (1,))
        return sum(weight * float(np.hypot(*(moved[:, 0, 1, 1] - moved[:, 0, 0, 1]))) for weight, moved in parts)

    assert told(5.0 * len(measured)) > 1.1 * told(5.0 * len(measured) + 3600.0)


def test_the_winner_is_proven_before_the_time_limit_though_more_could_be_won() -> None:
    measured = in_turn(BASE, FASTEST)
    assert chosen(measured).why is Why.NEW
    needed = chosen(in_turn(*EVERY)).seconds
    hurried = chosen(measured, seconds_left=3.2 * needed)
    assert (hurried.why, hurried.winner) == (Why.PROVE, FASTEST)
    assert chosen(measured, seconds_left=0.1 * needed).end is End.TIME


def test_with_time_for_two_probes_the_most_promising_one_is_among_them() -> None:
    measured = in_turn(BASE)
    probe_s = chosen(measured).seconds
    second = chosen(measured, seconds_left=1.01 * probe_s)
    assert (second.why, second.configuration) == (Why.NEW, FASTEST)


def test_it_ends_if_nothing_is_worth_its_seconds() -> None:
    measured = in_turn(BASE, FASTEST, RIVAL)
    assert chosen(measured, run_s=10.0).configuration is None
    assert chosen(measured, run_s=3600.0).configuration is not None


def test_a_rival_that_fell_out_does_not_leave_the_baseline_measured_alone() -> None:
    """It ran out of memory when it was measured again, and nothing else may be measured."""
    fell = Observation(FASTEST, Outcome.OUT_OF_MEMORY, wanted_bytes=1001 * MIB, started_s=15.0)
    measured = [*in_turn(BASE, FASTEST, BASE), fell]
    choice = chosen(measured, implied=lambda one: True)
    assert (choice.configuration, choice.winner) == (None, BASE)


def test_a_changed_setting_that_does_not_help_is_dropped() -> None:
    """A second change of the same speed: neither it nor what has it is handed out."""
    more, fewer = of(16, "full"), FASTEST
    measured = in_turn(BASE, more, fewer, errors=[0.0, float(np.log(seconds(fewer) / seconds(more))) - 0.0005])
    assert chosen(measured).winner == fewer


def test_what_is_disqualified_is_neither_handed_out_nor_measured_again() -> None:
    choice = chosen(in_turn(*EVERY), disqualified=[FASTEST])
    assert choice.winner == RIVAL
    assert choice.configuration != FASTEST


def test_no_new_configuration_is_chosen_once_the_probes_are_used() -> None:
    choice = chosen(in_turn(BASE, FASTEST), probes_left=0)
    assert choice.why is Why.PROVE
    assert chosen([Observation(BASE, Outcome.OUT_OF_MEMORY)], probes_left=0).end is End.PROBES


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_what_others_measure_now_is_not_chosen(noise: float) -> None:
    measured = in_turn(BASE, FASTEST, noise=noise)
    first = chosen(measured).configuration
    assert first is not None
    assert chosen(measured, running={"": first}).configuration != first


def test_less_memory_at_the_baselines_speed_is_compared_with_it() -> None:
    leaner = of(4, "full")
    measured = in_turn(BASE, leaner, errors=[0.0, float(np.log(seconds(BASE) / seconds(leaner)))])
    choice = chosen(measured, objective="memory", implied=lambda one: True)
    assert (choice.why, choice.winner) == (Why.PROVE, leaner)
    again = [replace(seen, started_s=10.0 + (seen.started_s or 0.0)) for seen in measured]
    assert chosen([*measured, *again], objective="memory", implied=lambda one: True).configuration is None
