"""Queries answered by child processes: the device, model and data, rates of the device, traces of the model."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from autotune.core import (
    Configuration,
    Environment,
    InvalidRequest,
    Outcome,
    TuningRequest,
    Workload,
    read_json,
    write_json,
)
from autotune.core.errors import ProbeHostFailed, TracingFailed
from autotune.core.failures import Failure, from_text
from autotune.core.paths import PREPARING, cache_folder
from autotune.core.request import tuning_request
from autotune.core.scratch import remove_left
from autotune.memory.estimate import MemoryModel, memory_model
from autotune.memory.keys import wanted_traces
from autotune.probe import BackgroundHost, Host
from autotune.probe.cache import AnswerFile
from autotune.probe.device import nvml
from autotune.probe.device.machine import cpu_name, machine_memory
from autotune.probe.order import Order
from autotune.probe.process.answers import ask, attempt, read_value
from autotune.probe.process.launcher import HostSet
from autotune.space.build import parse_overrides
from autotune.space.settings.optimizer import ORDINARY, user_optimizer
from autotune.space.settings.optimizer import SETTING as OPTIMIZER

READING_S = TRACING_S = 900.0
"""Deadlines for reading model and data (a large dataset is tokenised once), and for all traces of a model: seconds for most,
minutes for one that must be traced with all its layers."""

RATES_S, FIRST_STEP_S = 60.0, 30.0
"""For all rates, and for each optimizer whose first step may have to be compiled (torchao: 26 s on two cores)."""

PASSING_FACTS = ("others", "topology")
"""Facts of a card that change by themselves: an idle card's slot runs in a slower generation."""

PASSING = (Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT)
"""Outcomes that may differ a moment later: an environment with such a reason is not cached."""


# The device -------------------------------------------------------------------------------------------------------


def read_device(requested: str = "auto", fresh: bool = False) -> Environment:
    """Capabilities of the device, its driver and the libraries, with all optimizers of transformers.

    fresh: ignore the cache. Raises InvalidRequest for an absent device.
    """
    request = tuning_request("bert-mini", 1, device=requested)
    with nvml.kept_initialized(), contextlib.closing(HostSet()) as host:  # started only if the cache has no answer
        return read_environment(host, request, nvml.choose_device(request.device), every_optimizer=True, fresh=fresh)[0]


def read_environment(
    host: Host,
    request: TuningRequest,
    card: nvml.Card | None,
    every_optimizer: bool = False,
    fresh: bool = False,
) -> tuple[Environment, nvml.Card | None]:
    """Capabilities of the device, from the cache or from a child; `auto` falls back to the CPU if torch cannot use the card.

    every_optimizer: try all that transformers names, not only those that the request asks for.
    """
    reason = f"NVML: {error}" if card is None and request.device == "auto" and (error := nvml.first_error()) else ""
    try:
        environment = _environment(host, request, card, every_optimizer, fresh)
    except InvalidRequest as error:
        if card is None or request.device != "auto":
            raise
        environment, card, reason = _environment(host, request, None, every_optimizer, fresh), None, error.message
    return dataclasses.replace(environment, unused_gpu=reason), card


def _environment(
    host: Host, request: TuningRequest, card: nvml.Card | None, every_optimizer: bool, fresh: bool
) -> Environment:
    device = device_name(request, card)
    optimizers = None if every_optimizer else _optimizers(request)
    facts = {} if card is None else _card_facts(card)
    lasting = {name: value for name, value in facts.items() if name not in PASSING_FACTS}
    cores = len(os.sched_getaffinity(0))
    file = AnswerFile("capabilities", device=device, processor=cpu_name(), cores=cores, **lasting)
    cached, complete = _cached_environment(file) if host.uses_cache and not fresh else (None, False)
    if cached is not None and (complete or (optimizers is not None and {*optimizers} <= cached.optimizers.keys())):
        wanted = cached.optimizers if optimizers is None else [*ORDINARY, *optimizers]
        if (environment := _as_it_is_now(cached, wanted, card, facts)) is not None:
            return environment
    answer = ask(host, _order(host, "capabilities", device=device, optimizers=optimizers or "every", **facts))
    environment = Environment.from_dict(answer)
    if host.uses_cache and not _may_pass(environment):
        earlier: dict[str, Any] = {} if cached is None else cached.to_dict()
        tables = {name: {**earlier.get(name, {}), **answer[name]} for name in ("optimizers", "optimizer_bytes")}
        file.write({"every_optimizer": every_optimizer or complete, "environment": {**answer, **tables}})
    return environment


def _cached_environment(file: AnswerFile) -> tuple[Environment | None, bool]:
    """(The cached environment, whether all optimizers were tried); None if there is none or it is damaged."""
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        answer = file.read()
        environment, complete = Environment.from_dict(answer["environment"]), bool(answer["every_optimizer"])
        if {*ORDINARY} <= environment.optimizers.keys():
            return environment, complete
    return None, False


def _as_it_is_now(
    cached: Environment, optimizers: Collection[str], card: nvml.Card | None, facts: Mapping[str, Any]
) -> Environment | None:
    """The cached environment with these optimizers alone, and with the memory that is free now; None if that is unknown."""
    total, free = of_host = machine_memory()
    if card is not None:
        if (used := nvml.used_bytes(card.uuid)) is None:
            return None
        total = cached.total_memory_bytes
        free = total - used
    return dataclasses.replace(
        cached,
        optimizers={name: reason for name, reason in cached.optimizers.items() if name in optimizers},
        optimizer_bytes={name: size for name, size in cached.optimizer_bytes.items() if name in optimizers},
        total_memory_bytes=total,
        free_memory_bytes=free,
        host_free_bytes=of_host[1],
        others=tuple(facts.get("others", ())),
        topology=facts.get("topology", ""),
    )


def _may_pass(environment: Environment) -> bool:
    """True if something may have failed only because others use the device, for lack of memory or of time."""
    tables = (environment.precisions, environment.optimizers, environment.quantizations, environment.compile_backends)
    reasons = [reason for table in tables for reason in table.values() if reason]
    return bool(environment.others) or any(from_text(reason).outcome in PASSING for reason in reasons)


def device_name(request: TuningRequest, card: nvml.Card | None) -> str:
    """Name of the chosen device in the environment: cpu, or cuda and a number."""
    return "cpu" if card is None else "cuda:0" if request.device in ("auto", "cuda") else request.device


def _card_facts(card: nvml.Card) -> dict[str, Any]:
    """Facts of a card that the parent reads from NVML; `device_uuids` in the order in which ranks take the cards."""
    used = nvml.device_used(card)
    return {
        "device_uuid": card.uuid,
        "device_count": card.count,
        "device_uuids": list(dict.fromkeys([card.uuid, *(other.uuid for other in nvml.visible_cards())])),
        "driver": nvml.driver_version(),
        "topology": nvml.topology(card),
        "others": used[1] if used else [],
    }


def _optimizers(request: TuningRequest) -> list[str]:
    """Optimizers that the request's space, `--fix`, `--only` or training arguments name."""
    name = OPTIMIZER.name
    requested, fixed, only = parse_overrides(request)
    named = [*requested.get(name, ()), *([fixed[name]] if name in fixed else ()), *only.get(name, ())]
    return list(dict.fromkeys([user_optimizer(request.training_args), *map(str, named)]))


# Model and data ---------------------------------------------------------------------------------------------------


def read_workload(host: Host, request: TuningRequest) -> Workload:
    """Ask a child to read model and data; raises InvalidRequest for what cannot be read as requested."""
    cache = cache_folder()
    try:
        return Workload.from_dict(ask(host, _order(host, "prepare", request=request.to_dict(), cache=str(cache))))
    finally:
        remove_left(cache, f"{PREPARING}*")  # of one that was ended: a copy of the data


def _order(host: Host, kind: str, **request: Any) -> Order:
    return Order(kind=kind, folder=str(host.scratch_folder()), deadline_s=READING_S, request=request)


# Rates of the device ----------------------------------------------------------------------------------------------


def device_rates(host: Host, environment: Environment) -> Mapping[str, float]:
    """Precision -> operations / second of a large matrix product; optimizer -> parameters / second of its step.

    Without what cannot be measured, empty if nothing can be.
    """
    return _without_failed(_measure_rates(host, environment, ()))


def known_rates(host: Host, environment: Environment, seconds: float = math.inf) -> Mapping[str, float]:
    """The same, from the cache if this device and this software were measured before.

    What failed is cached too, as null, and not tried again. seconds: that measuring may take.
    """
    path = cache_folder() / "rates" / f"{environment.fingerprint()}.json"
    rates: Mapping[str, float | None] = {}
    with contextlib.suppress(OSError, ValueError):
        rates = read_json(path)
    wanted = {*chain(*_usable(environment))}
    if not wanted <= rates.keys():
        measured = _measure_rates(host, environment, rates, seconds)
        rates = {**rates, **measured}
        if measured:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, rates)
    return _without_failed({name: rate for name, rate in rates.items() if name in wanted})


def _measure_rates(
    host: Host,
    environment: Environment,
    known: Collection[str],
    seconds: float = math.inf,
) -> Mapping[str, float | None]:
    """Rates of all but the known ones, None for those that fail; empty if the measurement as a whole fails."""
    precisions, optimizers = ([name for name in names if name not in known] for names in _usable(environment))
    deadline_s = min(seconds, RATES_S + FIRST_STEP_S * len(optimizers))
    order = _order(host, "rates", precisions=precisions, optimizers=optimizers)
    order = dataclasses.replace(order, deadline_s=deadline_s, environment=environment)
    answer, failure = attempt(host, order)
    return {} if failure is not None else answer


def _usable(environment: Environment) -> tuple[list[str], list[str]]:
    """(precisions, optimizers) that work on this device."""
    tables = (environment.precisions, environment.optimizers)
    precisions, optimizers = ([name for name, reason in table.items() if reason is None] for table in tables)
    return precisions, optimizers


def _without_failed(rates: Mapping[str, float | None]) -> dict[str, float]:
    return {name: rate for name, rate in rates.items() if rate is not None}


# Traces -----------------------------------------------------------------------------------------------------------


def traced(
    host: Host,
    workload: Workload,
    environment: Environment,
    configurations: Iterable[Configuration],
    base: Mapping[str, Any],
) -> MemoryModel:
    """The memory model of these configurations and of all others with the same values at other micro-batch sizes.

    environment: of the device that is meant, which need not be here. base: the user's own arguments, those that differ
    from the defaults. Raises TracingFailed if tracing itself fails, and for a caller's own model, which has no config to
    build it from.
    """
    return begin_traces(host, workload, environment, configurations, base)()


def begin_traces(
    host: Host,
    workload: Workload,
    environment: Environment,
    configurations: Iterable[Configuration],
    base: Mapping[str, Any],
    seconds: float = math.inf,
    beside: BackgroundHost | None = None,
) -> Callable[[], MemoryModel]:
    """Function that waits for the traces and returns what `traced` does, or raises its errors.

    seconds: for all of it, after half of which no further combination is traced. beside: a separate host that begins with
    them now, unless they are cached, and is closed after them.
    """
    wanted = wanted_traces(configurations, environment, base, workload.task)
    request = wanted.request()
    # Nothing but these facts decides a trace; of a model with code of its own this cannot be told.
    cacheable = host.uses_cache and not workload.trust_remote_code
    file = AnswerFile("traces", workload=workload.to_dict(), **request)
    cached: Any = file.read() if cacheable else None
    is_cached = isinstance(cached, dict) and cached.keys() >= {"weights", "batch", "units", "steps", "updates"}
    order = None
    if not is_cached and not workload.user_objects:
        limit = {"seconds": seconds / 2} if math.isfinite(seconds) else {}
        order = _order(host, "trace", **request, **limit)
        order = dataclasses.replace(order, deadline_s=min(TRACING_S, seconds), workload=workload)
        order = beside.begin(order) if beside else order

    def wait() -> MemoryModel:
        if workload.user_objects:
            raise TracingFailed(
                "A model of your own cannot be traced without running it.", "Name a model, folder or config instead."
            )
        answer = cached
        if order is not None:
            answer, failure = attempt(host, order) if beside is None else _finished(beside, order, host)
            if failure is not None:
                raise TracingFailed(
                    f"Tracing {workload.name} failed: {failure.reason}.", "Let `autotune search` measure instead."
                )
            if cacheable and not any("error" in step for step in (*answer["steps"], *answer["updates"])):
                file.write(answer)
        return memory_model(answer, wanted, environment, base)

    return wait


def _finished(beside: BackgroundHost, order: Order, host: Host) -> tuple[Any, Failure | None]:
    """As `attempt`, of an order that was begun beside.

    If that failed, as what ran meanwhile may be the cause, the host tries again.
    """
    with contextlib.closing(beside), contextlib.suppress(ProbeHostFailed):
        value, failure = read_value(order, beside.finish(order))
        if failure is None or failure.outcome is Outcome.TIMED_OUT:
            return value, failure
    return attempt(host, order)
