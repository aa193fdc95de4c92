"""Queries of the device and of traces: each is answered once for what it depends on, and anew where that changed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pynvml
import pytest

from autotune.core import Environment, InvalidRequest, Workload, write_json
from autotune.core.errors import ProbeHostFailed, TracingFailed
from autotune.core.request import tuning_request
from autotune.probe import ExitInfo, queries
from autotune.probe.device import nvml
from autotune.probe.order import CHILD_ANSWER, Order
from autotune.probe.process.answers import ask
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_device, read_environment, traced
from autotune.space.settings.optimizer import ORDINARY
from tests.makers import GIB, cpu, gpu
from tests.nvidia import H100, Machine
from tests.probe.probes import configuration

REQUEST = tuning_request("bert-mini", 4, device="cpu")


class CardHost:
    """A host whose children are on a card: they answer as the order's facts say, or that torch cannot use it."""

    uses_cache = True

    def __init__(self, folder: Path, fails: str = "") -> None:
        self.orders, self.folder, self.fails = list[Order](), folder, fails

    def scratch_folder(self) -> Path:
        return self.folder

    def run(self, order: Order) -> ExitInfo:
        self.orders.append(order)
        write_json(self.folder / CHILD_ANSWER, {"value": self.environment(order.request).to_dict()})
        return ExitInfo("exited", codes=[0])

    def environment(self, request: Mapping[str, Any]) -> Environment:
        if request["device"] == "cpu":
            more = () if request["optimizers"] == "every" else request["optimizers"]
            return replace(cpu(), optimizers=dict.fromkeys([*ORDINARY, *more]))
        if self.fails:
            raise InvalidRequest(self.fails, "Use --device=cpu.")
        facts = {name: request[name] for name in ("others", "topology")}
        return replace(gpu(), optimizers=dict.fromkeys(ORDINARY), total_memory_bytes=80 * GIB, **facts)


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CardHost:
    """A host that answers for the CPU without processes, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CardHost(tmp_path)


@pytest.fixture
def orders(host: ProbeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Order]:
    """The orders that reach the host, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sent: list[Order] = []
    run = host.run
    monkeypatch.setattr(host, "run", lambda order: sent.append(order) or run(order))
    return sent


def cached(tmp_path: Path, kind: str) -> list[Path]:
    return sorted((tmp_path / "autotune" / kind).glob("*"))


def stable(environment: Environment) -> Environment:
    return replace(environment, total_memory_bytes=0, free_memory_bytes=0, host_free_bytes=0)


def test_capabilities_are_asked_once_and_free_memory_is_read_each_time(host: ProbeHost, orders: list[Order]) -> None:
    first, _ = read_environment(host, REQUEST, None)
    second, card = read_environment(host, REQUEST, None)
    assert [order.kind for order in orders] == ["capabilities"]
    assert card is None
    assert stable(second) == stable(first)
    assert date.fromisoformat(first.checked_on) <= date.today()
    assert 0 < second.free_memory_bytes <= second.total_memory_bytes


@pytest.mark.parametrize("change", ["version", "variable", "damage", "other shape"])
def test_capabilities_are_asked_anew_where_a_version_a_variable_or_the_file_changed(
    answering: CardHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first, _ = read_environment(answering, REQUEST, None)
    (file,) = cached(tmp_path, "capabilities")
    if change == "version":
        (tmp_path / "more" / "bitsandbytes-99.0.dist-info").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / "more"))
    elif change == "variable":
        monkeypatch.setenv("BNB_CUDA_VERSION", "121")
    else:
        file.write_text("{" if change == "damage" else '{"device": "cpu"}')
    again, _ = read_environment(answering, REQUEST, None)
    read_environment(answering, REQUEST, None)
    assert [order.kind for order in answering.orders] == ["capabilities"] * 2
    assert again.optimizers == first.optimizers


def test_a_fresh_check_renews_the_cache(answering: CardHost, tmp_path: Path) -> None:
    read_environment(answering, REQUEST, None)
    (file,) = cached(tmp_path, "capabilities")
    answer = json.loads(file.read_text())
    answer["precisions"]["bf16"] = "it was broken once"
    file.write_text(json.dumps(answer))
    assert read_environment(answering, REQUEST, None)[0].precisions["bf16"] == "it was broken once"
    renewed = read_environment(answering, REQUEST, None, fresh=True)[0]
    assert renewed.precisions["bf16"] != "it was broken once"
    assert stable(read_environment(answering, REQUEST, None)[0]) == stable(renewed)
    assert len(answering.orders) == 2


def test_a_check_that_is_cached_starts_no_process(answering: CardHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(_: ProbeHost) -> None:
        raise ProbeHostFailed("It was started.", "")

    monkeypatch.setattr(ProbeHost, "launch", launch)
    with pytest.raises(ProbeHostFailed):
        read_device("cpu")
    read_environment(answering, REQUEST, None)
    with pytest.raises(ProbeHostFailed):
        read_device("cpu")  # not all optimizers were tried
    checked, _ = read_environment(answering, REQUEST, None, every_optimizer=True)
    assert stable(read_device("cpu")) == stable(checked)
    more = tuning_request("bert-mini", 4, device="cpu", fix={"optimizer": "adagrad"})
    assert read_environment(answering, more, None)[0].optimizers.keys() <= checked.optimizers.keys()
    assert len(answering.orders) == 2, "what was tried of every optimizer is known to a search"
    with pytest.raises(ProbeHostFailed):
        read_device("cpu", fresh=True)


def test_an_optimizer_that_was_not_tried_is_asked_for_and_the_others_are_remembered(answering: CardHost) -> None:
    more = tuning_request("bert-mini", 4, device="cpu", fix={"optimizer": "adagrad"})
    for request in (REQUEST, more, REQUEST, more):
        environment, _ = read_environment(answering, request, None)
        assert ("adagrad" in environment.optimizers) is (request is more)
    assert len(answering.orders) == 2


def test_what_may_pass_is_not_remembered(answering: CardHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (
        {"optimizers": {"adamw_torch": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."}},
        {"others": ["blender (4711)"]},
    ):
        monkeypatch.setattr(queries, "ask", lambda host, order, found=found: {**ask(host, order), **found})
        read_environment(answering, REQUEST, None)
        assert not cached(tmp_path, "capabilities")
    assert len(answering.orders) == 2


@pytest.mark.nightly
def test_a_trace_is_remembered_for_its_model_and_settings(
    host: ProbeHost, orders: list[Order], tmp_path: Path, workload_of: Callable[..., Workload]
) -> None:
    workload = workload_of("bert-mini", sequence_length=16)
    del orders[:]
    peaks = [
        traced(host, model, cpu(), [configuration()], {}).peak(configuration()).device_bytes
        for model in (workload, workload, replace(workload, trust_remote_code=True))
    ]
    assert len(set(peaks)) == 1
    assert [order.kind for order in orders] == ["trace"] * 2, "code of a model's own may change unseen"
    (file,) = cached(tmp_path, "traces")
    file.write_text("[]")
    traced(host, workload, cpu(), [configuration()], {})
    assert len(orders) == 3


def read_on(host: Any, device: str) -> tuple[Environment, nvml.Card | None]:
    request = tuning_request("bert-mini", 4, device=device)
    return read_environment(host, request, nvml.choose_device(request.device))


def test_a_card_s_answer_holds_for_its_driver_and_not_for_what_changes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine_with_driver: Machine
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    host = CardHost(tmp_path)
    machine_with_driver.plug({**H100, "used": 2 * GIB, "CurrPcieLinkGeneration": 1})

    def read(**values: Any) -> Environment:
        machine_with_driver.set({name.replace("card_", "0."): value for name, value in values.items()})
        return read_on(host, "cuda")[0]

    read(card_processes="1")
    read(card_processes="")
    assert len(host.orders) == 2, "what was found beside another process is not remembered"
    later = read(card_CurrPcieLinkGeneration=5, card_used=5 * GIB, card_processes="1")
    assert later.topology == "PCIe generation 5 x16"
    assert [text.endswith("(1)") for text in later.others] == [True]
    assert later.free_memory_bytes == 75 * GIB
    assert len(host.orders) == 2
    read(driver="590.2")
    assert len(host.orders) == 3
    read(card_used=None)
    assert len(host.orders) == 4, "without NVML's figure free memory is unknown"


def test_auto_means_the_cpu_and_says_why_if_torch_cannot_use_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine_with_driver: Machine
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine_with_driver.plug(H100)
    host = CardHost(tmp_path, "torch 2.13.0+cpu cannot use the GPU: it was built without.")
    with pytest.raises(InvalidRequest, match="built without"):
        read_on(host, "cuda")
    for _ in ("asked", "remembered"):
        environment, card = read_on(host, "auto")
        assert (environment.device, card) == ("cpu", None)
        assert environment.unused_gpu == "torch 2.13.0+cpu cannot use the GPU: it was built without."
    assert read_on(host, "cpu")[0].unused_gpu == "", "it was asked for"


def test_auto_means_the_cpu_and_says_why_if_no_card_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine_with_driver: Machine
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert read_on(CardHost(tmp_path), "auto")[0].unused_gpu == "", "a driver and no card"
    machine_with_driver.plug(H100)
    machine_with_driver.set({"0.error": pynvml.NVML_ERROR_GPU_IS_LOST})
    assert read_on(CardHost(tmp_path), "auto")[0].unused_gpu == "NVML: GPU is lost"
    assert read_on(CardHost(tmp_path), "cpu")[0].unused_gpu == ""
    machine_with_driver.set({"0.error": None})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert read_on(CardHost(tmp_path), "auto")[0].unused_gpu == "", "hidden by the user"


def test_a_caller_s_own_model_cannot_be_traced() -> None:
    with pytest.raises(TracingFailed, match="model of your own"):
        traced(ProbeHost(), Workload("model_init", "custom", user_objects=True), cpu(), [], {})
