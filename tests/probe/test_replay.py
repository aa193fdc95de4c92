"""A probe that answers from a table."""

import pytest

from autotune.core import Outcome
from autotune.probe import Probe, ProbeOptions
from autotune.probe.replay import ReplayProbe, recorded
from tests.makers import ALLOWED, MIB, configuration, machine

OPTIONS = ProbeOptions(number=0, deadline_s=60.0)


def test_it_answers_from_its_table_and_remembers_what_was_asked() -> None:
    one, other = configuration(8), configuration(16)
    probe = ReplayProbe({one: machine(one)})
    as_a_probe: Probe = probe
    assert as_a_probe(one, OPTIONS) == machine(one)
    assert probe.asked == [(one, OPTIONS)]
    with pytest.raises(KeyError):
        probe(other, OPTIONS)


@pytest.mark.parametrize("micro_batch_size", [1, 8, 48])
def test_a_recorded_measurement_has_the_speed_and_peak_that_were_asked_for(micro_batch_size: int) -> None:
    of = configuration(micro_batch_size)
    made = recorded(of, 12.5, 500 * MIB, ALLOWED)
    assert made.samples_per_second == pytest.approx(12.5)
    assert made.peak_bytes == 500 * MIB
    assert made.feasible
    assert made.accumulation_steps == of.gradient_accumulation_steps
    assert made.warnings == ()


def test_a_recorded_peak_above_the_limit_is_an_out_of_memory() -> None:
    made = recorded(configuration(8), 12.5, 2 * ALLOWED, ALLOWED)
    assert made.outcome is Outcome.OUT_OF_MEMORY
    assert made.fits == pytest.approx(1.0)
    assert made.accumulation_steps == 6
