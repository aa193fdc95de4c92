"""What the device can do at its best, measured once and kept."""

import contextlib
from collections.abc import Mapping

from autotune.cache import cache_folder
from autotune.environment import Environment
from autotune.probe.launcher import ProbeHost
from autotune.probe.order import Order, read_json, write_json

DEADLINE_S = 60.0


def device_rates(host: ProbeHost, environment: Environment) -> Mapping[str, float]:
    """precision -> floating-point operations / second of a large matrix product; empty where they cannot be measured."""
    precisions = [name for name, reason in environment.precisions.items() if reason is None]
    order = Order(
        kind="rates",
        folder=str(host.scratch_folder()),
        deadline_s=DEADLINE_S,
        environment=environment,
        request={"precisions": precisions},
    )
    answer, failure = host.attempt(order)
    return {} if failure is not None else answer


def known_rates(host: ProbeHost, environment: Environment) -> Mapping[str, float]:
    """The same, from the cache where this device and this software were measured before."""
    place = cache_folder() / "rates" / f"{environment.fingerprint()}.json"
    try:
        known: Mapping[str, float] = read_json(place)
    except (OSError, ValueError):
        known = device_rates(host, environment)
        if known:
            with contextlib.suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                write_json(place, known)
    return known
