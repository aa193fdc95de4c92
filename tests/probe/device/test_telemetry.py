"""What a card says of itself, asked of NVML as it is before and after its names changed, and of one that says little."""

import sys
from dataclasses import replace
from typing import Any

import pynvml
import pytest

from autotune.probe.device.telemetry import (
    BRAKES,
    OWN_LIMITS,
    CardReading,
    card_facts,
    card_reader,
    card_warnings,
    joules_between,
)
from tests.nvidia import H100, UUIDS, Machine

IDLE, SETTING, CAP, HARDWARE, SYNC, THERMAL, HARDWARE_THERMAL, BRAKE, DISPLAY = (1 << place for place in range(9))

WELL = CardReading(
    energy_j=5000.0,
    temperature_c=60,
    sm_clock_mhz=1900,
    sm_clock_max_mhz=1980,
    power_w=640.0,
    power_limit_w=700.0,
    throttle_reasons=(),
)


@pytest.fixture
def card(machine_with_driver: Machine) -> Machine:
    """A machine with one card."""
    machine_with_driver.plug(H100)
    return machine_with_driver


def reading() -> CardReading:
    return card_reader(UUIDS[0])()


# Reading --------------------------------------------------------------------------------------------------------


def test_a_card_is_read_in_its_units(card: Machine) -> None:
    assert reading() == WELL


READ = {
    "TotalEnergyConsumption": "energy_j",
    "Temperature.0": "temperature_c",
    "ClockInfo.1": "sm_clock_mhz",
    "MaxClockInfo.1": "sm_clock_max_mhz",
    "PowerUsage": "power_w",
    "EnforcedPowerLimit": "power_limit_w",
    "CurrentClocksEventReasons": "throttle_reasons",
}
"""What NVML is asked -> what is read of it."""


@pytest.mark.parametrize("missing", READ)
def test_one_question_refused_leaves_the_others(card: Machine, missing: str) -> None:
    card.set({f"0.{missing}": None})
    assert reading() == replace(WELL, **{READ[missing]: None})


@pytest.mark.parametrize("answered", range(3, 10))
def test_a_card_that_is_lost_in_the_midst_of_a_reading_says_nothing_wrong(card: Machine, answered: int) -> None:
    card.set({"0.lost_after": answered})
    read = card_reader(UUIDS[0])
    first = read()
    assert all(value in (None, getattr(WELL, name)) for name, value in vars(first).items())
    assert read() == CardReading()
    assert card_warnings(WELL, first) == []


def test_without_a_name_a_card_or_nvml_all_is_unknown(card: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert card_reader("GPU-of-nobody")() == CardReading()
    assert card_reader(None)() == CardReading()
    assert {name for name in card.calls if "UUID" not in name} == {"nvmlInitWithFlags"}
    card.set({"error.nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    assert reading() == CardReading()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert reading() == CardReading()


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (IDLE | SETTING | DISPLAY, ()),
        (CAP | SYNC, ("power cap", "sync boost")),
        (IDLE | THERMAL | BRAKE, ("thermal slowdown", "power brake")),
        (HARDWARE | HARDWARE_THERMAL, ("hardware slowdown", "thermal slowdown by hardware")),
    ],
)
@pytest.mark.parametrize(
    ("forgotten", "question"),
    [
        ("none", "CurrentClocksThrottleReasons"),  # a new pynvml on an old driver
        ("Event", "CurrentClocksThrottleReasons"),
        ("Throttle", "CurrentClocksEventReasons"),
    ],
)
def test_reasons_are_read_by_their_old_and_new_names(
    card: Machine, monkeypatch: pytest.MonkeyPatch, forgotten: str, question: str, bits: int, words: tuple[str, ...]
) -> None:
    """forgotten: reasons whose names a pynvml of then, or of later, does not have."""
    for name in dir(pynvml):
        if name.startswith("nvmlClocks") and forgotten in name:
            monkeypatch.delattr(pynvml, name)
    card.set({"0.CurrentClocksEventReasons": None, f"0.{question}": bits})
    assert reading().throttle_reasons == words


# Energy ---------------------------------------------------------------------------------------------------------


def test_energy_is_the_difference_of_the_counter() -> None:
    assert joules_between(WELL, replace(WELL, energy_j=5640.5), seconds=1.0) == 640.5


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [(5000.0, 5600.0, 0.99), (None, 5600.0, 9.0), (5000.0, None, 9.0), (5000.0, 12.0, 9.0), (5000.0, 5000.0, 9.0)],
)
def test_energy_is_unknown_in_a_short_time_and_without_a_counter_that_counts(
    before: float | None, after: float | None, seconds: float
) -> None:
    assert joules_between(replace(WELL, energy_j=before), replace(WELL, energy_j=after), seconds) is None


# Warnings ---------------------------------------------------------------------------------------------------------


def test_a_card_that_is_well_or_unknown_raises_no_warning() -> None:
    assert card_warnings(WELL, WELL) == []
    assert card_warnings(CardReading(), CardReading()) == []
    assert card_warnings(WELL, CardReading()) == []
    assert card_warnings(CardReading(), WELL) == []


@pytest.mark.parametrize("words", BRAKES.values())
def test_a_brake_met_at_either_end_is_a_fact_and_warned_once_by_name_unless_it_is_a_limit_of_the_card_s_own(
    words: str,
) -> None:
    braked = replace(WELL, throttle_reasons=(words,))
    for begun, ended in ((WELL, braked), (braked, WELL), (braked, braked)):
        warned = [] if words in OWN_LIMITS else [f"the card was held back: {words}"]
        assert [*map(str, card_warnings(begun, ended))] == warned
        assert card_facts(begun, ended)["throttle_reasons"] == [words]


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        ({"throttle_reasons": ("power cap",)}, False),
        ({"power_w": 665.0, "power_limit_w": 700.0}, False),
        ({"power_w": 664.0, "power_limit_w": 700.0}, True),
        ({"power_w": 700.0, "power_limit_w": None}, True),
        ({"power_w": None}, True),
    ],
)
def test_a_clock_that_falls_is_warned_only_where_power_does_not_regulate_it(
    facts: dict[str, Any], warned: bool
) -> None:
    ended = replace(WELL, **{"sm_clock_mhz": 1700, "power_w": 300.0, "power_limit_w": 700.0, **facts})
    fallen = ["the card's SM clock fell by 11% meanwhile, and ended at 1700 MHz"]
    assert [*map(str, card_warnings(WELL, ended))] == (fallen if warned else [])
    assert card_facts(WELL, ended)["sm_clock_mhz"] == 1700
