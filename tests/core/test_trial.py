"""A trial: its probe, its confirmations, and which of them counts."""

from dataclasses import replace

import pytest

from autotune.core.measurement import Measurement, Outcome
from tests.makers import MIB, completed, configuration, ended, trial


def test_without_confirmation_the_probe_counts() -> None:
    tried = trial(0, 10.0)
    assert tried.final is tried.measurement
    assert tried.feasible
    assert not tried.confirmed
    assert tried.samples_per_second == pytest.approx(10.0)


def test_a_confirmed_trial_counts_as_all_its_rounds_together() -> None:
    of = configuration()
    tried = replace(trial(0, 10.0, of=of), confirmations=(completed(of, 8.0), completed(of, 8.0, spread=0.02)))
    assert tried.confirmed
    assert tried.samples_per_second == pytest.approx(8.0, rel=0.001)
    assert len(tried.final.steps) == 12


@pytest.mark.parametrize("failure", [ended(Outcome.OUT_OF_MEMORY), completed(allocator_retries=1)])
def test_a_round_that_failed_or_did_not_fit_is_what_counts(failure: Measurement) -> None:
    tried = replace(trial(0), confirmations=(completed(), failure))
    assert tried.final is failure
    assert not tried.confirmed
    assert not tried.feasible


def test_a_probe_that_did_not_fit_counts_whatever_its_rounds_did() -> None:
    """As it is under a lower limit than it was measured with, or when it was measured again because it could not be read."""
    probe = replace(completed(peak_bytes=700 * MIB), allowed_bytes=699 * MIB)
    tried = replace(trial(0), measurement=probe, confirmations=(completed(), completed()))
    assert tried.final is probe
    assert not tried.confirmed
    assert not tried.feasible


def test_the_peak_is_the_highest_of_all_its_probes() -> None:
    of = configuration()
    probes = (completed(of, peak_bytes=700 * MIB), completed(of, peak_bytes=600 * MIB))
    assert replace(trial(0, peak_bytes=500 * MIB), confirmations=probes).peak_bytes == 700 * MIB
    assert trial(0, peak_bytes=500 * MIB).peak_bytes == 500 * MIB
    assert replace(trial(0), measurement=ended(Outcome.CRASHED)).peak_bytes is None


def test_what_it_took_is_the_sum_of_its_probe_and_its_rounds() -> None:
    assert trial(0, confirmed=10.0, probe_seconds=61.0).probe_seconds == 183.0
