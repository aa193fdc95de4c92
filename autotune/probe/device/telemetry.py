"""Telemetry of a card by NVML: energy, temperature, clocks and reasons for lower clocks, read twice and compared."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.probe.device.nvml import opened

JOULES_LEAST_S = 1.0
"""Seconds from which a difference of the energy counter is told: it moves every 20 to 100 ms, so that at one second the
two ends are wrong by a tenth at most."""

HEAT_MARGIN_C = 2
"""Degrees Celsius below the slowdown threshold from which a card counts as at it: NVML tells whole degrees, and cards
that regulate hold themselves just below."""

CLOCK_FALL = 0.10
"""Share of its first value that a clock must lose to count as fallen: clocks wander by some percent from step to step,
and a step that is bound by memory hardly follows them."""

AT_POWER_LIMIT = 0.95
"""Share of its power limit from which a card regulates its clocks by it: the power told is a mean over up to a second."""

POWER_CAP = "power cap"
OWN_LIMITS = (POWER_CAP, "sync boost", "board limit", "reliability limit")
"""Of BRAKES those under which a card is as fast as it will be however often it is asked: facts, and no warnings."""

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
"""NVML's reasons for lower clocks (`nvmlClocksEventReason…`, `nvmlClocksThrottleReason…` before 2023) -> our words.

Left out, since they hold nobody back: idle, and clocks that somebody set (for applications, for a display)."""


@dataclass(frozen=True)
class CardReading:
    """A card at one moment; None where it does not tell. energy_j: since its driver was loaded.

    slowdown_temperature_c: from which the card lowers its clocks. power_limit_w: the one in force.
    throttle_reasons: in the words of BRAKES; empty where nothing holds the card back.
    """

    energy_j: float | None = None
    temperature_c: int | None = None
    slowdown_temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


def card_reader(uuid: str | None) -> Callable[[], CardReading]:
    """What reads the card of this NVML name, in some ten calls; NVML is opened here, once, for the process's life.

    Without a name, a driver or such a card every reading is unknown. Never raises, and neither does what it returns.
    """
    with contextlib.suppress(Exception):  # NVML's errors
        if uuid is not None and (nvml := opened()) is not None:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            return lambda: _read(nvml, handle)
    return CardReading


def joules_between(begun: CardReading, ended: CardReading, seconds: float) -> float | None:
    """The card's energy between two readings; None where it has no counter, or in less than JOULES_LEAST_S."""
    if begun.energy_j is None or ended.energy_j is None or seconds < JOULES_LEAST_S:
        return None
    joules = ended.energy_j - begun.energy_j
    return joules if joules > 0 else None  # it counts from the driver's loading, which may have happened anew


def card_facts(begun: CardReading, ended: CardReading) -> dict[str, Any]:
    """What is known of a card at the end, and what changes also at the start; every reason met at either."""
    at_start = {f"{name}_at_start": getattr(begun, name) for name in ("temperature_c", "sm_clock_mhz", "power_w")}
    reasons = {"throttle_reasons": None if ended.throttle_reasons is None else _reasons_met(begun, ended)}
    facts = {**at_start, **vars(ended), **reasons, "energy_j": None}
    return {name: value for name, value in facts.items() if value is not None}


def card_warnings(begun: CardReading, ended: CardReading) -> list[str]:
    """What speaks against a time that lies between these readings."""
    warnings = []
    brakes = [reason for reason in _reasons_met(begun, ended) if reason not in OWN_LIMITS]
    if brakes:
        warnings.append(f"the card was held back: {', '.join(brakes)}")
    regulated = _at_power_limit(begun) or _at_power_limit(ended)
    if not regulated and fell(begun.sm_clock_mhz, ended.sm_clock_mhz):
        warnings.append(f"the card's SM clock fell from {begun.sm_clock_mhz} to {ended.sm_clock_mhz} MHz meanwhile")
    heat, limit = ended.temperature_c, ended.slowdown_temperature_c
    if heat is not None and limit is not None and heat >= limit - HEAT_MARGIN_C:
        warnings.append(f"the card was at {heat} °C, and slows down from {limit} °C")
    return warnings


def fell(before: float | None, after: float | None) -> bool:
    """Whether a clock lost more than CLOCK_FALL of its first value; False where either is unknown."""
    return before is not None and after is not None and after < before * (1 - CLOCK_FALL)


def _reasons_met(begun: CardReading, ended: CardReading) -> list[str]:
    return list(dict.fromkeys((*(begun.throttle_reasons or ()), *(ended.throttle_reasons or ()))))


def _at_power_limit(card: CardReading) -> bool:
    """Whether its clocks follow its power: then they say nothing of others."""
    if POWER_CAP in (card.throttle_reasons or ()):
        return True
    power, limit = card.power_w, card.power_limit_w
    return power is not None and limit is not None and power >= AT_POWER_LIMIT * limit


def _read(nvml: Any, handle: Any) -> CardReading:
    """Each question by itself: cards, drivers and virtual machines differ in which they answer."""

    def ask(question: str, *more: Any) -> Any:
        with contextlib.suppress(Exception):  # not supported by card, driver or pynvml, or the card is lost
            return getattr(nvml, question)(handle, *more)
        return None

    temperature = ask("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU)
    if temperature is None:  # a driver or pynvml from before 2025
        temperature = ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
    # Degrees to the nearest slowdown, where the card knows them (Ada and later); the threshold itself is for older ones.
    margin = ask("nvmlDeviceGetMarginTemperature")
    threshold = ask("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    return CardReading(
        energy_j=_thousandth(ask("nvmlDeviceGetTotalEnergyConsumption")),
        temperature_c=temperature,
        slowdown_temperature_c=threshold if temperature is None or margin is None else temperature + margin,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        power_w=_thousandth(ask("nvmlDeviceGetPowerUsage")),
        power_limit_w=_thousandth(ask("nvmlDeviceGetEnforcedPowerLimit")),
        throttle_reasons=_reasons(nvml, ask),
    )


def _reasons(nvml: Any, ask: Callable[[str], Any]) -> tuple[str, ...] | None:
    """By the newer of the two names that pynvml and the driver both know."""
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return None if bits is None else tuple(reason for name, reason in BRAKES.items() if bits & _bit(nvml, name))


def _bit(nvml: Any, reason: str) -> int:
    """The bit of a reason; 0, which is never met, where this pynvml has no such reason."""
    old = getattr(nvml, f"nvmlClocksThrottleReason{reason}", 0)
    return int(getattr(nvml, f"nvmlClocksEventReason{reason}", old))


def _thousandth(value: int | None) -> float | None:
    """NVML counts in milliwatts and millijoules."""
    return None if value is None else value / 1000
