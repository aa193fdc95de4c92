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

UUID = "GPU-0123"
IDLE, SETTING, CAP, HARDWARE, SYNC, THERMAL, HARDWARE_THERMAL, BRAKE, DISPLAY = (1 << place for place in range(9))

WELL = CardReading(
    energy_j=5000.0,
    temperature_c=60,
    slowdown_temperature_c=90,
    sm_clock_mhz=1900,
    sm_clock_max_mhz=1980,
    power_w=640.0,
    power_limit_w=700.0,
    throttle_reasons=(),
)


class Card:
    """NVML with one card whose answers the test sets; questions without an answer are refused."""

    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_CLOCK_SM = 1

    def __init__(self, *generations: str, **answers: Any) -> None:
        """generations: of the names of the reasons, `Event` and `Throttle`."""
        for generation in generations:
            for name in dir(pynvml):
                if name.startswith(f"nvmlClocks{generation}Reason"):
                    setattr(self, name, getattr(pynvml, name))
        self.answers = answers
        self.opened = 0
        self.asked: list[tuple[Any, ...]] = []

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != UUID:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "the handle"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        question = name.removeprefix("nvmlDeviceGet")

        def answer(handle: str, *more: Any) -> Any:
            assert handle == "the handle"
            self.asked.append((question, *more))
            if question not in self.answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return self.answers[question]

        return answer


ANSWERS = {
    "TotalEnergyConsumption": 5_000_000,
    "Temperature": 60,
    "TemperatureThreshold": 90,
    "ClockInfo": 1900,
    "MaxClockInfo": 1980,
    "PowerUsage": 640_000,
    "EnforcedPowerLimit": 700_000,
    "CurrentClocksEventReasons": 0,
}


def plugged(monkeypatch: pytest.MonkeyPatch, card: Card) -> Card:
    monkeypatch.setitem(sys.modules, "pynvml", card)
    return card


def reading_of(monkeypatch: pytest.MonkeyPatch, card: Card) -> CardReading:
    return card_reader(UUID)() if plugged(monkeypatch, card) else CardReading()


# Reading --------------------------------------------------------------------------------------------------------


def test_a_card_is_read_in_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("Event", **ANSWERS)
    assert reading_of(monkeypatch, card) == WELL
    assert {("ClockInfo", 1), ("MaxClockInfo", 1), ("Temperature", 0), ("TemperatureThreshold", 1)} <= set(card.asked)


def test_nvml_is_opened_once_and_not_by_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    card = plugged(monkeypatch, Card("Event", **ANSWERS))
    read = card_reader(UUID)
    assert (card.opened, card.asked) == (1, [])
    assert read() == read() == WELL
    assert card.opened == 1


def test_every_question_is_one_that_nvml_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    reading_of(monkeypatch, card)
    assert len(card.asked) > 8
    assert {f"nvmlDeviceGet{question}" for question, *_ in card.asked} <= set(dir(pynvml))
    for name in ("NVML_TEMPERATURE_GPU", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN", "NVML_CLOCK_SM"):
        assert getattr(Card, name) == getattr(pynvml, name)


def test_every_reason_of_nvml_has_words_or_holds_nobody_back() -> None:
    kinds = ("nvmlClocksEventReason", "nvmlClocksThrottleReason")
    known = {name.removeprefix(kind) for kind in kinds for name in dir(pynvml) if name.startswith(kind)}
    harmless = {"None", "All", "GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks", "DisplayClockSetting"}
    assert set(BRAKES) == known - harmless


@pytest.mark.parametrize("missing", ANSWERS)
def test_one_question_refused_leaves_the_others(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    answers = {question: answer for question, answer in ANSWERS.items() if question != missing}
    reading = reading_of(monkeypatch, Card("Event", **answers))
    changed = {name for name, value in vars(reading).items() if value != getattr(WELL, name)}
    assert len(changed) == 1
    assert all(getattr(reading, name) is None for name in changed)


def test_without_a_name_a_card_or_nvml_all_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert card_reader("GPU-of-nobody")() == CardReading()  # the real library, with or without a driver
    card = plugged(monkeypatch, Card("Event", **ANSWERS))
    assert card_reader(None)() == card_reader("GPU-of-nobody")() == CardReading()
    assert card.asked == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert card_reader(UUID)() == CardReading()


def test_the_newer_question_for_the_temperature_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading_of(monkeypatch, Card("Event", **ANSWERS, TemperatureV=61)).temperature_c == 61


def test_a_card_that_knows_its_distance_to_the_slowdown_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = reading_of(monkeypatch, Card("Event", **ANSWERS, MarginTemperature=27))
    assert reading.slowdown_temperature_c == 87
    without = {question: answer for question, answer in ANSWERS.items() if question != "TemperatureThreshold"}
    assert reading_of(monkeypatch, Card("Event", **without, MarginTemperature=-1)).slowdown_temperature_c == 59


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
    ("generations", "question"),
    [
        (["Event", "Throttle"], "CurrentClocksEventReasons"),
        (["Event", "Throttle"], "CurrentClocksThrottleReasons"),  # a new pynvml on an old driver
        (["Throttle"], "CurrentClocksThrottleReasons"),
        (["Event"], "CurrentClocksEventReasons"),
    ],
)
def test_reasons_are_read_by_their_old_and_new_names(
    monkeypatch: pytest.MonkeyPatch, generations: list[str], question: str, bits: int, words: tuple[str, ...]
) -> None:
    assert reading_of(monkeypatch, Card(*generations, **{question: bits})).throttle_reasons == words


def test_a_reason_that_this_nvml_does_not_know_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading_of(monkeypatch, Card(CurrentClocksEventReasons=2**64 - 1)).throttle_reasons == ()


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


# Facts ----------------------------------------------------------------------------------------------------------


def test_the_facts_are_those_at_the_end_and_what_changes_at_the_start_too() -> None:
    ended = replace(WELL, temperature_c=71, sm_clock_mhz=1700, power_w=700.0, throttle_reasons=("power cap",))
    assert card_facts(WELL, ended) == {
        "temperature_c_at_start": 60,
        "temperature_c": 71,
        "slowdown_temperature_c": 90,
        "sm_clock_mhz_at_start": 1900,
        "sm_clock_mhz": 1700,
        "sm_clock_max_mhz": 1980,
        "power_w_at_start": 640.0,
        "power_w": 700.0,
        "power_limit_w": 700.0,
        "throttle_reasons": ["power cap"],
    }


def test_nothing_unknown_is_a_fact_but_no_reason_is_one() -> None:
    assert card_facts(CardReading(), CardReading()) == {}
    assert card_facts(CardReading(), CardReading(throttle_reasons=())) == {"throttle_reasons": []}
    both = card_facts(replace(WELL, throttle_reasons=("sync boost",)), replace(WELL, throttle_reasons=("power cap",)))
    assert both["throttle_reasons"] == ["sync boost", "power cap"]


# Warnings ---------------------------------------------------------------------------------------------------------


def test_a_card_that_is_well_or_unknown_raises_no_warning() -> None:
    assert card_warnings(WELL, WELL) == []
    assert card_warnings(CardReading(), CardReading()) == []
    assert card_warnings(WELL, CardReading()) == []
    assert card_warnings(CardReading(), WELL) == []


@pytest.mark.parametrize("words", [words for words in BRAKES.values() if words not in OWN_LIMITS])
def test_a_brake_met_at_either_end_is_warned_once_by_name(words: str) -> None:
    braked = replace(WELL, throttle_reasons=(words,))
    for begun, ended in ((WELL, braked), (braked, WELL), (braked, braked)):
        assert card_warnings(begun, ended) == [f"the card was held back: {words}"]


@pytest.mark.parametrize("words", OWN_LIMITS)
def test_a_limit_of_the_card_s_own_is_a_fact_and_no_warning_whenever_it_is_met(words: str) -> None:
    limited = replace(WELL, throttle_reasons=(words,))
    for begun, ended in ((WELL, limited), (limited, WELL), (limited, limited)):
        assert card_warnings(begun, ended) == []
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
    fallen = ["the card's SM clock fell from 1900 to 1700 MHz meanwhile"]
    assert card_warnings(WELL, ended) == (fallen if warned else [])
    assert card_facts(WELL, ended)["sm_clock_mhz"] == 1700


@pytest.mark.parametrize(("heat", "warned"), [(87, False), (88, True), (95, True)])
def test_a_card_at_its_slowdown_temperature_is_warned(heat: int, warned: bool) -> None:
    warnings = card_warnings(WELL, replace(WELL, temperature_c=heat))
    assert warnings == ([f"the card was at {heat} °C, and slows down from 90 °C"] if warned else [])
