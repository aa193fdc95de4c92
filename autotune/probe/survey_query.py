"""What a request's words turn out to be, asked of child processes: the device with its software, the model with its data."""

from collections.abc import Mapping
from typing import Any

from autotune.core.environment import Environment
from autotune.core.errors import InvalidRequest
from autotune.core.paths import cache_folder
from autotune.core.request import TuningRequest, tuning_request
from autotune.core.workload import Workload
from autotune.probe.device import nvml
from autotune.probe.order import Order
from autotune.probe.process.launcher import ProbeHost
from autotune.space.build import parse_overrides
from autotune.space.settings.optimizer import SETTING as OPTIMIZER
from autotune.space.settings.optimizer import user_optimizer

READING_S = 900.0
"""Deadline for reading model and data: a large dataset is tokenised once."""


def read_device(asked: str = "auto") -> Environment:
    """What the device, its driver and the libraries can really do; raises InvalidRequest for an absent device."""
    request = tuning_request("bert-mini", 1, device=asked)
    card = nvml.choose_device(request.device)
    with ProbeHost() as host:
        return read_environment(host, request, card, every_optimizer=True)[0]


def read_environment(
    host: ProbeHost, request: TuningRequest, card: nvml.Card | None, every_optimizer: bool = False
) -> tuple[Environment, nvml.Card | None]:
    """Ask a child what the device can do; `auto` falls back to the CPU where torch cannot use the card.

    every_optimizer: try all that transformers names, not only those that the request asks for.
    """
    wanted: dict[str, Any] = {"optimizers": "every" if every_optimizer else _optimizers(request)}
    if card is not None:
        used = nvml.device_used(card)
        wanted |= {
            "device_uuid": card.uuid,
            "device_count": card.count,
            "device_uuids": _this_first(card, nvml.visible_cards()),
            "driver": nvml.driver_version(),
            "topology": nvml.topology(card),
            "others": used[1] if used else [],
        }
    asked = {"device": device_name(request, card), **wanted}
    try:
        return Environment.from_dict(_ask(host, "capabilities", asked)), card
    except InvalidRequest:
        if card is None or request.device != "auto":
            raise
        return read_environment(host, request, None, every_optimizer)


def device_name(request: TuningRequest, card: nvml.Card | None) -> str:
    """What the environment calls the device that was chosen: cpu, or cuda and a number."""
    return "cpu" if card is None else "cuda:0" if request.device in ("auto", "cuda") else request.device


def _optimizers(request: TuningRequest) -> list[str]:
    """Those that the request's space, `--fix`, `--only` or training arguments name."""
    asked, fixed, chosen = parse_overrides(request)
    name = OPTIMIZER.name
    named = [*asked.get(name, ()), *([fixed[name]] if name in fixed else ()), *chosen.get(name, ())]
    return list(dict.fromkeys([user_optimizer(request.training_args), *map(str, named)]))


def _this_first(card: nvml.Card, visible: list[nvml.Card]) -> list[str]:
    """The cards' names, in the order in which ranks take them."""
    return [card.uuid, *(one.uuid for one in visible if one.uuid != card.uuid)]


def read_workload(host: ProbeHost, request: TuningRequest) -> Workload:
    """Ask a child to read model and data; raises InvalidRequest for what cannot be read as asked."""
    wanted = {"request": request.to_dict(), "cache": str(cache_folder())}
    return Workload.from_dict(_ask(host, "prepare", wanted))


def _ask(host: ProbeHost, kind: str, request: Mapping[str, Any]) -> Any:
    return host.ask(Order(kind=kind, folder=str(host.scratch_folder()), deadline_s=READING_S, request=request))
