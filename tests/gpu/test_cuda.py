"""The same on CUDA: real out-of-memory, the limit, NVML's figures, precisions, and CUDA asleep in parent and host."""

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune
from autotune.core import Environment, Measurement, Outcome, Workload, read_json
from autotune.core.errors import ProbeHostFailed
from autotune.core.slot import Slot
from autotune.probe import ProbeOptions
from autotune.probe.device.nvml import device_used, opened, visible_cards
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import known_rates, traced
from autotune.probe.runner import LiveProbe
from autotune.space.settings import SETTINGS, Context
from autotune.workload.model.pickling import sent
from tests.probe.probes import CALLERS, QUICK, configuration, make_order, measured
from tests.probe.processes import becomes_true

pytestmark = pytest.mark.gpu

CARD: Any = next(iter(visible_cards()), None)  # by NVML: asking torch would wake CUDA in this process
MIB, GIB = 2**20, 2**30
STAGES = ("build", "data", "forward", "backward", "optimizer")

Train = Callable[..., Measurement]


@pytest.fixture(autouse=True)
def asleep() -> Iterator[None]:
    """CUDA never wakes in the parent, whatever a test does."""
    yield
    assert not torch.cuda.is_initialized()


@pytest.fixture
def train(host: ProbeHost, cuda: Environment, workload_of: Callable[..., Workload], tmp_path: Path) -> Train:
    """`train("bert-mini", configuration(8), sequence_length=64)`: a few steps on the card."""

    def train(
        model: str,
        asked: Any,
        *,
        sequence_length: int | None = 64,
        ends: Outcome = Outcome.COMPLETED,
        **fields: Any,
    ) -> Measurement:
        workload = workload_of(model, sequence_length=sequence_length)
        order = make_order(
            tmp_path, cuda, asked=asked, **{"workload": workload, "deadline_s": 240.0, "timing": QUICK, **fields}
        )
        measurement = measured(host, order)
        assert measurement.outcome is ends, f"{measurement.reason}\n{measurement.log_tail}"
        return measurement

    return train


def used_bytes() -> int:
    """Bytes in use on the card by anyone, as NVML says."""
    return (device_used(CARD) or (0, []))[0]


# The device -----------------------------------------------------------------------------------------------------


def test_the_card_is_read_as_nvml_knows_it(cuda: Environment) -> None:
    assert cuda.device == "cuda:0"
    assert cuda.device_uuid == CARD.uuid
    assert cuda.device_name
    assert cuda.compute_capability is not None
    assert 0 < cuda.free_memory_bytes <= cuda.total_memory_bytes
    assert 0 <= cuda.context_bytes < 4 * GIB
    assert cuda.precisions["fp32"] is None
    ampere = cuda.compute_capability >= (8, 0)
    assert (cuda.precisions["bf16"] is None) == (cuda.precisions["tf32"] is None) == ampere
    assert cuda.optimizers["adamw_torch_fused"] is None


def test_what_the_card_can_do_is_measured(host: ProbeHost, cuda: Environment) -> None:
    rates = known_rates(host, cuda)
    precisions = {name for name, reason in cuda.precisions.items() if reason is None}
    assert set(rates) == precisions | {name for name, reason in cuda.optimizers.items() if reason is None}
    assert all(10**12 < rates[name] < 10**16 for name in precisions)
    assert all(10**8 < rates[name] < 10**13 for name in set(rates) - precisions)
    if "bf16" in rates:
        assert rates["bf16"] > rates["tf32"] > rates["fp32"]


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_estimate_lies_near_the_real_peak(
    host: ProbeHost,
    train: Train,
    cuda: Environment,
    workload_of: Callable[..., Workload],
    checkpointing: str,
) -> None:
    asked = configuration(32, checkpointing=checkpointing)
    model = traced(host, workload_of("bert-base", sequence_length=128), cuda, [asked], {})
    measurement = train("bert-base", asked, sequence_length=128)
    assert measurement.peak_reserved_bytes is not None
    assert model.peak(asked).reserved_bytes == pytest.approx(measurement.peak_reserved_bytes, rel=0.06)


# Settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "bf16_weights"])
def test_every_precision_is_trained_in_as_asked(train: Train, cuda: Environment, precision: str) -> None:
    if reason := cuda.precisions[precision]:
        pytest.skip(reason)
    asked = configuration(8, 2, precision=precision, optimizer="adamw_torch_fused", pin_memory=True)
    measurement = train("bert-mini", asked)
    assert dict(measurement.settings) == asked.values
    assert {step.samples for step in measurement.steps} == {16}
    assert {step.tokens for step in measurement.steps} == {16 * 64}
    for step in measurement.steps:
        assert 0 < step.optimizer_s <= step.last_s <= step.seconds
        assert step.first_s > 0


@pytest.mark.parametrize(
    "optimizer",
    [
        *("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop", "adamw_bnb_8bit"),
        *("paged_adamw_8bit", "paged_adamw_32bit", "lion_8bit", "ademamix_8bit", "adamw_torch_8bit"),
    ],
)
def test_every_optimizer_is_trained_with_as_asked(train: Train, cuda: Environment, optimizer: str) -> None:
    for library, known in (("bitsandbytes", ("bnb", "paged", "lion", "ademamix")), ("torchao", ("torch_8bit",))):
        if any(item in optimizer for item in known) and importlib.util.find_spec(library) is None:
            pytest.skip(f"needs {library}, which is not installed")
    if reason := cuda.optimizers.get(optimizer):
        pytest.skip(reason)
    measurement = train("bert-mini", configuration(8, optimizer=optimizer))
    assert measurement.settings["optimizer"] == optimizer


@pytest.mark.parametrize(
    "settings",
    [
        *({"checkpointing": value} for value in ("full", "every_2nd", "every_3rd", "offload", "full_reentrant")),
        *({"workers": 2, "pin_memory": True}, {"pin_memory": False}),
    ],
)
def test_checkpointing_workers_and_pinned_memory_are_as_asked(
    train: Train, cuda: Environment, workload_of: Callable[..., Workload], settings: dict[str, Any]
) -> None:
    workload = workload_of("gpt2-mini", sequence_length=64)
    for name, value in settings.items():
        if reason := SETTINGS[name].unavailable(value, Context(cuda, workload)):
            pytest.skip(reason)
    asked = configuration(8, 2, **settings)
    measurement = train("gpt2-mini", asked)
    assert dict(measurement.settings) == asked.values


def test_layers_that_forget_in_part_or_into_the_hosts_memory_take_less_by_as_much(
    train: Train, cuda: Environment
) -> None:
    if "offload" not in cuda.checkpointing_options:
        pytest.skip("this transformers has no such checkpointing")
    peaks = []
    for checkpointing in ("none", "every_3rd", "every_2nd", "full", "offload"):
        measurement = train("bert-base", configuration(32, checkpointing=checkpointing), sequence_length=128)
        peaks.append(measurement.peak_allocated_bytes or 0)
    assert peaks == sorted(peaks, reverse=True)


def test_weights_in_16_bits_take_half_the_memory_of_float32(train: Train, cuda: Environment) -> None:
    if reason := cuda.precisions["bf16_weights"]:
        pytest.skip(reason)
    held = {}
    for precision in ("fp32", "bf16_weights"):
        measurement = train("bert-base", configuration(1, precision=precision), sequence_length=128)
        held[precision] = measurement.peak_allocated_bytes or 0
    assert held["bf16_weights"] < 0.6 * held["fp32"]


@pytest.mark.parametrize(("precision", "expected"), [("fp32", False), ("tf32", True)])
def test_tf32_is_read_of_matrices_also_where_a_convolution_comes_first(
    train: Train, cuda: Environment, precision: str, expected: bool
) -> None:
    if reason := cuda.precisions[precision]:
        pytest.skip(reason)
    measurement = train("vit-mini", configuration(4, precision=precision), sequence_length=None)
    assert (measurement.settings["precision"] == "tf32") == expected


# Memory ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_no_card_holds_is_out_of_memory_and_says_where(train: Train) -> None:
    measurement = train("bert-base", configuration(32768), sequence_length=512, ends=Outcome.OUT_OF_MEMORY)
    assert measurement.where in ("forward", "backward")
    assert measurement.refused_bytes is not None
    assert measurement.refused_bytes > MIB
    assert measurement.held_bytes
    assert measurement.fits > 0


def test_the_limit_is_honoured(train: Train, cuda: Environment) -> None:
    if cuda.free_memory_bytes < 14 * GIB:
        pytest.skip("needs a card with 14 GiB free")
    # bert-base: 1.8 GB for weights, gradients and AdamW; 64 x 128 tokens need some 8 GB more, 128 tokens next to nothing.
    allowed, large, small = (4 * GIB, *(configuration(size, optimizer="adamw_torch_fused") for size in (64, 1)))
    free = train("bert-base", large, sequence_length=128)
    assert free.peak_bytes is not None
    assert free.peak_bytes > allowed
    held = train("bert-base", large, sequence_length=128, allowed_bytes=allowed, ends=Outcome.OUT_OF_MEMORY)
    assert held.where in STAGES
    assert held.held_bytes is not None
    assert held.held_bytes <= allowed
    assert held.held_bytes + (held.refused_bytes or 0) > 0.8 * allowed
    fitting = train("bert-base", small, sequence_length=128, allowed_bytes=allowed)
    assert fitting.feasible
    assert fitting.peak_bytes is not None
    assert fitting.peak_bytes <= allowed


def test_the_reported_peak_is_what_nvml_shows(train: Train) -> None:
    used = device_used(CARD)
    assert used is not None
    if used[1]:
        pytest.skip(f"needs the card alone: {', '.join(used[1])}")
    seen, stop = [used[0]], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append(used_bytes())
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        measurement = train("bert-base", configuration(8), sequence_length=128, device_used_bytes=used[0])
    finally:
        stop.set()
        watcher.join()
    shown = max(seen) - used[0]
    assert measurement.peak_device_bytes == pytest.approx(shown, rel=0.02, abs=128 * MIB)
    reserved, context = measurement.peak_reserved_bytes or 0, measurement.context_bytes or 0
    # cuBLAS and cuDNN take some memory of their own, past torch's allocator.
    assert shown == pytest.approx(reserved + context, rel=0.15, abs=768 * MIB)


def test_the_memory_of_a_killed_probe_is_back(cuda: Environment, tmp_path: Path) -> None:
    def model_init() -> Any:
        import os
        import time
        from pathlib import Path

        import torch

        held = torch.ones(2**29, device="cuda")  # 2 GiB
        torch.cuda.synchronize()
        Path(os.environ["BEHAVIOUR_FOLDER"], "ready").write_text(str(held.numel()))
        while True:
            time.sleep(60)

    before = used_bytes()
    with ProbeHost(sent({"model_init": model_init})) as host:
        most: list[int] = []

        def watch() -> None:
            if becomes_true((tmp_path / "ready").exists, 60.0):
                most.append(used_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        probe = LiveProbe(
            host,
            cuda,
            CALLERS,
            {},
            allowed_bytes=4 * GIB,
            folder=lambda slot: tmp_path,
            device_used=lambda: device_used(CARD),
        )
        os.environ["BEHAVIOUR_FOLDER"] = str(tmp_path)
        try:
            measurement = probe(configuration(), ProbeOptions(Slot(), 20.0))
        finally:
            del os.environ["BEHAVIOUR_FOLDER"]
            watcher.join()
        assert measurement.outcome is Outcome.TIMED_OUT
        assert most, "the probe took its memory"
        assert most[0] >= before + 2 * GIB
        assert used_bytes() <= before + 128 * MIB, "back before the next probe starts"


# Asleep ---------------------------------------------------------------------------------------------------------


def test_cuda_stays_asleep_in_the_host(train: Train, host: ProbeHost) -> None:
    # The host would refuse to fork; and NVML would name it among the processes on the card.
    for _ in range(2):
        train("bert-mini", configuration(2))
    nvml = opened()
    handle = nvml.nvmlDeviceGetHandleByUUID(CARD.uuid)
    on_card = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    nvml.nvmlShutdown()
    assert host.pid is not None
    assert not on_card & {host.pid, os.getpid()}


def test_cuda_stays_asleep_where_libraries_that_wake_it_are_there(host: ProbeHost) -> None:
    if host.pid is None:
        host.start()
    maps = Path(f"/proc/{host.pid}/maps").read_text()
    assert "libbitsandbytes" not in maps
    # NVML opens /dev/nvidiactl; only CUDA opens this one.
    assert "/dev/nvidia-uvm" not in [_opens(host.pid, name) for name in os.listdir(f"/proc/{host.pid}/fd")]


def test_a_host_in_which_cuda_woke_refuses_to_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'autotune.probe.process.host' in sys.orig_argv:\n    import torch\n    torch.cuda.init()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with ProbeHost() as woken, pytest.raises(ProbeHostFailed, match="woke CUDA"):
        woken.start()


def _opens(pid: int, descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


# The main job ---------------------------------------------------------------------------------------------------


def test_a_search_on_the_card_finds_an_exact_configuration(tmp_path: Path) -> None:
    result = autotune.search(
        "bert-mini",
        32,
        device="cuda",
        sequence_length=64,
        n_trials=5,
        timeout=150,
        output_dir=str(tmp_path),
    )
    best = result.best
    assert best.feasible
    assert best.configuration.global_batch_size == 32
    assert best.confirmed
    assert best.samples_per_second is not None
    assert result.environment.device_uuid == CARD.uuid
    use = result.utilization(best)
    assert use is not None
    assert use.of_measured is not None
    assert 0 < use.of_measured < 1
    assert use.mfu is None or 0 < use.mfu < use.of_measured
    fields = result.to_dict()["training_arguments"]
    product = fields["per_device_train_batch_size"] * fields["gradient_accumulation_steps"]
    assert product == 32
    assert "use_cpu" not in fields
    assert not torch.cuda.is_initialized()


# Compiling and the allocator ------------------------------------------------------------------------------------


@pytest.mark.parametrize("expandable", [True, False])
def test_the_allocator_runs_with_or_without_expandable_segments(train: Train, tmp_path: Path, expandable: bool) -> None:
    measurement = train("bert-mini", configuration(8, pin_memory=True, expandable_segments=expandable))
    assert measurement.settings["expandable_segments"] is expandable
    variable = read_json(tmp_path / "order.json")["process_environment"]["PYTORCH_CUDA_ALLOC_CONF"]
    assert f"expandable_segments:{expandable}" in variable


def test_the_cache_is_emptied_as_often_as_asked(train: Train) -> None:
    measurement = train("bert-mini", configuration(8, pin_memory=True, empty_cache_steps=4))
    assert measurement.settings["empty_cache_steps"] == 4
