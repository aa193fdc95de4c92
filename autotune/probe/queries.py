"""Queries answered by child processes: the device, model and data, rates of the device, traces of the model."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from autotune.core import (
    Configuration,
    Environment,
    InvalidRequest,
    Outcome,
    TuningRequest,
    Workload,
)
from autotune.core.errors import TracingFailed
from autotune.core.failures import from_text
from autotune.core.paths import PREPARING, cache_folder
from autotune.core.request import tuning_request
from autotune.core.scratch import remove_left
from autotune.memory.estimate import MemoryModel, memory_model
from autotune.memory.keys import wanted_traces
from autotune.probe import Host
from autotune.probe.cache import AnswerFile
from autotune.probe.device import nvml
from autotune.probe.device.machine import cpu_name, machine_memory
from autotune.probe.order import Order
from autotune.probe.process.answers import ask, attempt
from autotune.probe.process.launcher import HostSet
from autotune.space.build import parse_overrides
from autotune.space.settings.optimizer import ORDINARY, user_optimizer
from autotune.space.settings.optimizer import SETTING as OPTIMIZER

READING_S = TRACING_S = 900.0
"""Deadlines for reading model and data (a large dataset is tokenised once), and for all traces of a model: seconds for most,
minutes for one that must be traced with all its layers."""

RATES_S, FIRST_STEP_S = 60.0, 30.0
"""Deadlines for all rates, and for each optimizer whose first step may have to be compiled (torchao: 26 s on two cores)."""

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
    optimizers = "every" if every_optimizer else _optimizers(request)
    facts = {} if card is None else _card_facts(card)
    lasting = {name: value for name, value in facts.items() if name not in PASSING_FACTS}
    lasting |= {"device": device, "processor": cpu_name(), "cores": len(os.sched_getaffinity(0))}
    every, file = (AnswerFile("capabilities", optimizers=tried, **lasting) for tried in ("every", optimizers))
    if host.uses_cache and not fresh:
        for cached in (every, file):  # `autotune doctor` tries every one
            if (environment := _cached_environment(cached, card, facts)) is not None:
                return environment if every_optimizer else _with_optimizers(environment, {*ORDINARY, *optimizers})
    environment = Environment.from_dict(
        ask(host, _order(host, "capabilities", device=device, optimizers=optimizers, **facts))
    )
    if host.uses_cache and not _may_pass(environment):
        file.write(environment.to_dict())
    return environment


def _with_optimizers(environment: Environment, names: Collection[str]) -> Environment:
    """The environment with these optimizers alone."""
    return dataclasses.replace(
        environment,
        optimizers={name: reason for name, reason in environment.optimizers.items() if name in names},
        optimizer_bytes={name: size for name, size in environment.optimizer_bytes.items() if name in names},
    )


def _cached_environment(file: AnswerFile, card: nvml.Card | None, facts: Mapping[str, Any]) -> Environment | None:
    """The cached environment, with the memory that is free now; None if it is missing or damaged, or the memory is unknown."""
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        cached = Environment.from_dict(file.read())
        total, free = of_host = machine_memory()
        if card is not None:
            if (used := nvml.used_bytes(card.uuid)) is None:
                return None
            total = cached.total_memory_bytes
            free = total - used
        return dataclasses.replace(
            cached,
            total_memory_bytes=total,
            free_memory_bytes=free,
            host_free_bytes=of_host[1],
            others=tuple(facts.get("others", ())),
            topology=facts.get("topology", ""),
        )
    return None


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


def known_rates(host: Host, environment: Environment, seconds: float = math.inf) -> Mapping[str, float]:
    """Precision -> operations / second of a large matrix product; optimizer -> parameters / second of its step.

    From the cache if this device and this software were measured before; what failed is cached too, as null. Without what
    cannot be measured, empty if nothing can be. seconds: that measuring may take.
    """
    tables = (environment.precisions, environment.optimizers)
    precisions, optimizers = ([name for name, reason in table.items() if reason is None] for table in tables)
    file = AnswerFile("rates", environment=environment.identity(), precisions=precisions, optimizers=optimizers)
    rates = file.read()
    if not isinstance(rates, dict):
        order = _order(host, "rates", precisions=precisions, optimizers=optimizers)
        deadline_s = min(seconds, RATES_S + FIRST_STEP_S * len(optimizers))
        rates, failure = attempt(host, dataclasses.replace(order, deadline_s=deadline_s, environment=environment))
        if failure is not None:
            return {}
        file.write(rates)
    return {name: rate for name, rate in rates.items() if rate is not None}


# Traces -----------------------------------------------------------------------------------------------------------


def traced(
    host: Host,
    workload: Workload,
    environment: Environment,
    configurations: Iterable[Configuration],
    base: Mapping[str, Any],
    seconds: float = math.inf,
) -> MemoryModel:
    """The memory model of these configurations and of all others with the same values at other micro-batch sizes.

    environment: of the device that is meant, which need not be here. base: the user's own arguments, those that differ
    from the defaults. seconds: for all of it, after half of which no further combination is traced. Raises TracingFailed if
    tracing itself fails, and for a caller's own model, which has no config to build it from.
    """
    if workload.user_objects:
        raise TracingFailed(
            "A model of your own cannot be traced without running it.", "Name a model, folder or config instead."
        )
    wanted = wanted_traces(configurations, environment, base, workload.task)
    request = wanted.request()
    # Nothing but these facts decides a trace; of a model with code of its own this cannot be told.
    cacheable = host.uses_cache and not workload.trust_remote_code
    file = AnswerFile("traces", workload=workload.to_dict(), **request)
    reply: Any = file.read() if cacheable else None
    if not isinstance(reply, dict) or not reply.keys() >= {"weights", "batch", "units", "steps", "updates"}:
        limit = {"seconds": seconds / 2} if math.isfinite(seconds) else {}
        order = _order(host, "trace", **request, **limit)
        order = dataclasses.replace(order, deadline_s=min(TRACING_S, seconds), workload=workload)
        reply, failure = attempt(host, order)
        if failure is not None:
            raise TracingFailed(
                f"Tracing {workload.name} failed: {failure.reason}.", "Let `autotune search` measure instead."
            )
        if cacheable and not any("error" in step for step in (*reply["steps"], *reply["updates"])):
            file.write(reply)
    return memory_model(reply, wanted, environment, base)
