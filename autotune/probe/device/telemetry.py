"""Telemetry of a card by NVML: energy, temperature, clocks and reasons for lower clocks, read twice and compared."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe.device.nvml import opened

JOULES_LEAST_S = 1.0
"""Seconds from which a difference of the energy counter is used: it moves every 20 to 100 ms, so that over a second both
ends are wrong by a tenth at most."""

CLOCK_FALL = 0.10
"""Share of its first value that a clock must lose to count as fallen: clocks vary by some percent from step to step."""

AT_POWER_LIMIT = 0.95
"""Share of its power limit from which a card regulates its clocks by it: power is a mean over up to a second."""

POWER_CAP = "power cap"
OWN_LIMITS = (POWER_CAP, "sync boost", "board limit", "reliability limit")
"""Reasons of BRAKES that are normal for the card: facts, not warnings."""

BRAKES = {
    "SwPowerCap": POWER_CAP,
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal slowdown",
    "HwThermalSlowdown": "thermal slowdown by hardware",
    "HwPowerBrakeSlowdown": "power brake",
    "BoardLimit": "board limit",
    "Reliability": "reliability limit",
}
"""NVML's reasons for lower clocks (`nvmlClocksEventReason…`, `nvmlClocksThrottleReason…` before 2023) -> text.

Not idle, nor clocks that somebody set (for applications, for a display)."""


@dataclass(frozen=True)
class CardReading:
    """A card at one moment; None if unknown.

    energy_j: since its driver was loaded. power_limit_w: the one in
    force. throttle_reasons: as in BRAKES.
    """

    energy_j: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


def card_reader(uuid: str | None) -> Callable[[], CardReading]:
    """A function that reads the card of this NVML name; opens NVML once, for the process's life.

    Without a name, a driver or such a card every reading is unknown. Neither raises.
    """
    card = _opened_card(uuid)
    return CardReading if card is None else partial(_read, *card)


def clock_reader(uuid: str | None) -> Callable[[], int | None]:
    """A function that reads this card's clock (MHz) alone, which takes some microseconds; None if it is unknown."""
    card = _opened_card(uuid)
    return (lambda: None) if card is None else partial(_sm_clock_mhz, *card)


def _opened_card(uuid: str | None) -> tuple[Any, Any] | None:
    """(pynvml, the card of this name)."""
    with contextlib.suppress(Exception):  # NVML's errors
        if uuid is not None and (nvml := opened()) is not None:
            return nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
    return None


def _sm_clock_mhz(nvml: Any, handle: Any) -> int | None:
    with contextlib.suppress(Exception):
        return int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    return None


def joules_between(begun: CardReading, ended: CardReading, seconds: float) -> float | None:
    """The card's energy between two readings; None if it has no counter, or in less than JOULES_LEAST_S."""
    if begun.energy_j is None or ended.energy_j is None or seconds < JOULES_LEAST_S:
        return None
    joules = ended.energy_j - begun.energy_j
    return joules if joules > 0 else None  # the driver may have been loaded again


def card_facts(begun: CardReading, ended: CardReading) -> dict[str, Any]:
    """Known facts of a card at the end, changing ones also at the start; reasons met at either."""
    at_start = {f"{name}_at_start": getattr(begun, name) for name in ("temperature_c", "sm_clock_mhz", "power_w")}
    reasons = {"throttle_reasons": None if ended.throttle_reasons is None else _reasons_met(begun, ended)}
    facts = {**at_start, **vars(ended), **reasons, "energy_j": None}
    return {name: value for name, value in facts.items() if value is not None}


def card_warnings(begun: CardReading, ended: CardReading) -> list[ResultWarning]:
    """Reasons not to trust times between these readings."""
    warnings = []
    if brakes := [reason for reason in _reasons_met(begun, ended) if reason not in OWN_LIMITS]:
        warnings.append(ResultWarning(WarningKind.CARD_BRAKES, detail=", ".join(brakes)))
    if not (_at_power_limit(begun) or _at_power_limit(ended)):
        warnings += clock_warnings(WarningKind.CARD_CLOCK, begun.sm_clock_mhz, ended.sm_clock_mhz)
    return warnings


def clock_warnings(kind: WarningKind, before: float | None, after: float | None) -> list[ResultWarning]:
    """The warning of a clock (MHz) that lost more than CLOCK_FALL of its first value; none if either is unknown."""
    if before is None or after is None or after >= before * (1 - CLOCK_FALL):
        return []
    return [ResultWarning(kind, {"fall": 1 - after / before, "mhz": after})]


def _reasons_met(begun: CardReading, ended: CardReading) -> list[str]:
    return list(dict.fromkeys((*(begun.throttle_reasons or ()), *(ended.throttle_reasons or ()))))


def _at_power_limit(card: CardReading) -> bool:
    """True if its clocks follow its power."""
    if POWER_CAP in (card.throttle_reasons or ()):
        return True
    power, limit = card.power_w, card.power_limit_w
    return power is not None and limit is not None and power >= AT_POWER_LIMIT * limit


def _read(nvml: Any, handle: Any) -> CardReading:
    """One query at a time: cards, drivers and virtual machines differ in which they answer."""

    def ask(*names: str, argument: tuple[int, ...] = ()) -> Any:
        """The answer to the first of these queries that card, driver and pynvml support."""
        for name in names:
            with contextlib.suppress(Exception):
                return getattr(nvml, f"nvmlDeviceGet{name}")(handle, *argument)
        return None

    bits = ask("CurrentClocksEventReasons", "CurrentClocksThrottleReasons")
    return CardReading(
        energy_j=_thousandth(ask("TotalEnergyConsumption")),
        temperature_c=ask(
            "TemperatureV", "Temperature", argument=(nvml.NVML_TEMPERATURE_GPU,)
        ),  # the older one until 2025
        sm_clock_mhz=_sm_clock_mhz(nvml, handle),
        sm_clock_max_mhz=ask("MaxClockInfo", argument=(nvml.NVML_CLOCK_SM,)),
        power_w=_thousandth(ask("PowerUsage")),
        power_limit_w=_thousandth(ask("EnforcedPowerLimit")),
        throttle_reasons=None
        if bits is None
        else tuple(text for name, text in BRAKES.items() if bits & _bit(nvml, name)),
    )


def _bit(nvml: Any, reason: str) -> int:
    """The bit of a reason; 0 if this pynvml has no such reason."""
    old = getattr(nvml, f"nvmlClocksThrottleReason{reason}", 0)
    return int(getattr(nvml, f"nvmlClocksEventReason{reason}", old))


def _thousandth(value: int | None) -> float | None:
    """NVML counts in milliwatts and millijoules."""
    return None if value is None else value / 1000
