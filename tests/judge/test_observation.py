"""What a probe teaches: its numbers, and plain data there and back."""

import json

import pytest

from autotune.core.measurement import Outcome
from autotune.judge.constants import WITHOUT_INTERVAL
from autotune.judge.observation import Observation, observed
from tests.makers import ALLOWED, MIB, completed, configuration, ended, out_of_memory, step


def test_a_step_is_its_micro_batches_and_the_optimizer() -> None:
    of = configuration(8)  # six micro-batches
    seen = observed(of, completed(of, samples_per_second=48.0))
    assert seen.step_s == pytest.approx(1.0)
    assert seen.optimizer_step_s == pytest.approx(0.1)
    assert seen.micro_step_s == pytest.approx(0.9 / 6)


def test_an_optimizer_that_noise_makes_the_whole_step_leaves_something_to_the_micro_batches() -> None:
    of = configuration(48)
    seen = observed(of, completed(of, steps=(step(1.0, optimizer_s=1.0, samples=48),) * 4))
    assert seen.micro_step_s == pytest.approx(0.001)


def test_noise_is_that_of_the_interval() -> None:
    of = configuration(8)
    quiet, loud = (observed(of, completed(of, spread=spread)).noise for spread in (0.01, 0.1))
    assert 0 < quiet < loud
    alone = completed(of, steps=(step(1.0, samples=48),))
    assert loud < observed(of, alone).noise == WITHOUT_INTERVAL < 1


def test_an_out_of_memory_tells_what_it_wanted() -> None:
    of = configuration(8)
    seen = observed(of, out_of_memory(of, held_bytes=900 * MIB, refused_bytes=300 * MIB))
    assert (seen.wanted_bytes, seen.peak_bytes, seen.micro_step_s) == (1200 * MIB, None, None)


def test_what_runs_out_of_memory_needs_more_than_is_allowed_though_fragments_left_some() -> None:
    of = configuration(8)
    seen = observed(of, out_of_memory(of, held_bytes=ALLOWED - 300 * MIB, refused_bytes=MIB))
    assert seen.wanted_bytes == ALLOWED


def test_what_neither_ran_nor_ran_out_of_memory_tells_nothing_but_its_end() -> None:
    seen = observed(configuration(8), ended(Outcome.CRASHED, probe_seconds=3.0))
    assert (seen.step_s, seen.peak_bytes, seen.wanted_bytes, seen.feasible) == (None, None, None, False)
    assert seen.starting_s == 3.0


def test_a_start_is_what_no_step_took() -> None:
    of = configuration(8)
    seen = observed(of, completed(of, steps=(step(1.0), step(3.0)), untimed_steps=1, probe_seconds=16.0, compile_s=2.0))
    assert seen.starting_s == 16.0 - 3 * 2.0 - 2.0


def test_it_goes_through_json_and_back() -> None:
    of = configuration(8)
    seen = observed(of, completed(of))
    assert Observation.from_dict(json.loads(json.dumps(seen.to_dict()))) == seen
