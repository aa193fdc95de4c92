"""What every test stands on: no network, a cache of its own, one process that starts probes, and tiny models."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# What tests import and the processes that they start import too is compiled once.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # until all is imported, which makes no garbage to speak of
os.fsync = lambda _: None  # tests kill processes, no machines

# Set before any library reads them; the processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
# Threads that wait for each other sleep: spinning, two tests' trainings on two cores slow each other thirtyfold.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tests-cache-")
# A shell's background jobs ignore Ctrl-C, those of nohup SIGHUP, and so would the processes that tests start.
for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # these two are ignored by Python itself
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

CORES = os.sched_getaffinity(0)
"""Of this machine, as far as the tests may use it."""

if worker := os.environ.get(
    "PYTEST_XDIST_WORKER"
):  # a core each: trainings on all cores at once slow each other twofold
    os.sched_setaffinity(0, {sorted(CORES)[int(worker.removeprefix("gw")) % len(CORES)]})

if str(ROOT := Path(__file__).parents[1]) not in sys.path:
    sys.path.insert(0, str(ROOT))  # a plain checkout, with the project not installed

from autotune.core import Environment, Measurement, Outcome, Workload  # noqa: E402
from autotune.probe.order import Order  # noqa: E402
from autotune.probe.process.answers import ask  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.space.settings import SETTINGS, Context  # noqa: E402
from tests import nvidia  # noqa: E402
from tests.probe.probes import configuration, make_order, measured  # noqa: E402

RECORDED = Path(__file__).parent / "data" / "recorded" / "bert-mini.json"
"""What a real host answered to the orders of a search (tests/data/record_host.py), for a `RecordedHost`."""

ASKING_S = 300.0
"""Deadline for reading a device or a model: a stuck one fails its test, a slow machine does not."""


GOLDEN = Path(__file__).parent / "data" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Write the golden files that differ (tests/data/golden)."
    )


def pytest_collection_finish() -> None:
    """From here on garbage is collected, which Trainers do before each training: not among what was imported, for a second."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("explain.txt", text)`: holds the text against that golden file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; --update-golden writes it anew"

    return check


@pytest.fixture(scope="module")
def all_cores() -> Iterator[None]:
    """For tests that start processes which need several cores."""
    pinned = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, pinned)


@pytest.fixture
def fresh_float32_precision() -> Iterator[None]:
    """No float32 precision is named in this process, as in a fresh one; afterwards it is as it was."""
    import torch

    holders = (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [holder.fp32_precision for holder in holders]
    with warnings.catch_warnings():  # torch 2.9 says once in a process that there is another interface
        warnings.simplefilter("ignore", UserWarning)
        of_matmul = torch.get_float32_matmul_precision()
    for holder in holders:
        holder.fp32_precision = "none"
    yield
    torch.set_float32_matmul_precision(of_matmul)
    for holder, precision in zip(holders, before, strict=True):  # what was never named inherits
        holder.fp32_precision = precision


@pytest.fixture(scope="session")
def nvidia_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `nvidia.compiled`."""
    return nvidia.compiled(tmp_path_factory.mktemp("nvidia"))


@pytest.fixture
def machine_with_driver(
    nvidia_libraries: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> nvidia.Machine:
    """A machine with NVIDIA's driver, and no card before the test plugs one."""
    return nvidia.Machine(nvidia_libraries, tmp_path_factory.mktemp("driver") / "state", monkeypatch)


@pytest.fixture(scope="session")
def host() -> Iterator[ProbeHost]:
    """The process that starts probes, without objects of a caller; every test may use it."""
    with ProbeHost() as host:
        yield host


@pytest.fixture(scope="session")
def environment(host: ProbeHost, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What this machine's CPU can really do, found by a child."""
    folder = tmp_path_factory.mktemp("capabilities")
    order = Order(kind="capabilities", folder=str(folder), deadline_s=ASKING_S, request={"device": "cpu"})
    return Environment.from_dict(ask(host, order))


@pytest.fixture(scope="session")
def workload_of(host: ProbeHost, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Workload]:
    """`workload_of("bert-mini", sequence_length=32)`: what preparing made of that request, read by a child."""
    known: dict[str, Workload] = {}

    def workload(model: str, **options: Any) -> Workload:
        from autotune.core.request import tuning_request

        key = f"{model} {sorted(options.items())}"
        if key not in known:
            request = tuning_request(model, options.pop("global_batch_size", 4), **options)
            wanted = {"request": request.to_dict(), "cache": str(tmp_path_factory.mktemp("prepared"))}
            folder = tmp_path_factory.mktemp("asking")
            order = Order(kind="prepare", folder=str(folder), deadline_s=ASKING_S, request=wanted)
            known[key] = Workload.from_dict(ask(host, order))
        return known[key]

    return workload


@pytest.fixture
def train(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> Callable[..., Measurement]:
    """`train("gpt2-mini", lora="8")`: a probe of that model, or workload, with settings that the training showed."""

    def train(model: str | Workload, micro: int = 2, accumulation: int = 2, **settings: Any) -> Measurement:
        workload = workload_of(model, sequence_length=16) if isinstance(model, str) else model
        for name, value in settings.items():
            assert SETTINGS[name].unavailable(value, Context(environment, workload)) is None
        asked = configuration(micro, accumulation, **settings)
        order = make_order(tmp_path, environment, asked=asked, workload=workload, deadline_s=ASKING_S)
        measurement = measured(host, order)
        assert measurement.outcome is Outcome.COMPLETED, f"{measurement.reason}\n{measurement.log_tail}"
        for name, value in settings.items():
            shown = measurement.settings.get(name)
            assert shown == value or (shown is None and SETTINGS[name].active_if), f"{name} {value}: {shown}"
        return measurement

    return train
