"""What the device can do at its best, measured once and kept."""

import contextlib
import math
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

from autotune.core.environment import Environment
from autotune.core.io import read_json, write_json
from autotune.core.paths import cache_folder
from autotune.probe.order import Order
from autotune.probe.process.launcher import ProbeHost
from autotune.space.tensor_cores import OutputLayer

DEADLINE_S, FIRST_STEP_S = 60.0, 30.0
"""For all, and for each optimizer whose first step may have to be compiled (torchao: 26 s on two cores)."""


def _wanted(environment: Environment) -> tuple[list[str], list[str]]:
    """(precisions, optimizers) that work here."""
    tables = (environment.precisions, environment.optimizers)
    precisions, optimizers = ([name for name, reason in table.items() if reason is None] for table in tables)
    return precisions, optimizers


def device_rates(host: ProbeHost, environment: Environment) -> Mapping[str, float]:
    """precision -> floating-point operations / second of a large matrix product; optimizer -> parameters / second of its
    step; without what cannot be measured, empty where nothing can be."""
    return _without_failed(_measured(host, environment, ()))


def known_rates(host: ProbeHost, environment: Environment, seconds: float = math.inf) -> Mapping[str, float]:
    """The same, from the cache where this device and this software were measured before.

    What failed is kept too, as null, and not tried again. seconds: that measuring may take.
    """
    place = cache_folder() / "rates" / f"{environment.fingerprint()}.json"
    known: Mapping[str, float | None] = {}
    with contextlib.suppress(OSError, ValueError):
        known = read_json(place)
    if not set(chain(*_wanted(environment))) <= known.keys():
        found = _measured(host, environment, known, seconds)
        known = {**known, **found}
        if found:
            with contextlib.suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                write_json(place, known)
    return _without_failed(known)


def head_seconds(
    host: ProbeHost, environment: Environment, layer: OutputLayer, seconds: float = math.inf
) -> dict[int, float]:
    """Size of the vocabulary, as it is and padded -> seconds of the output layer's products; empty where they fail."""
    request = {
        "precisions": [],
        "sizes": [layer.size, layer.padded],
        "width": layer.width,
        "precision": layer.precision,
    }
    answer, failure = host.attempt(_order(host, environment, min(seconds, DEADLINE_S), request))
    return {} if failure is not None else {int(size): each for size, each in answer.items()}


def _order(host: ProbeHost, environment: Environment, deadline_s: float, request: Mapping[str, Any]) -> Order:
    folder = str(host.scratch_folder())
    return Order(kind="rates", folder=folder, deadline_s=deadline_s, environment=environment, request=request)


def _measured(
    host: ProbeHost, environment: Environment, known: Collection[str], seconds: float = math.inf
) -> Mapping[str, float | None]:
    """Rates of all but the known ones, None for those that fail; empty where the measurement as a whole fails."""
    precisions, optimizers = ([name for name in names if name not in known] for names in _wanted(environment))
    deadline_s = min(seconds, DEADLINE_S + FIRST_STEP_S * len(optimizers))
    order = _order(host, environment, deadline_s, {"precisions": precisions, "optimizers": optimizers})
    answer, failure = host.attempt(order)
    return {} if failure is not None else answer


def _without_failed(rates: Mapping[str, float | None]) -> dict[str, float]:
    return {name: rate for name, rate in rates.items() if rate is not None}
