"""What every test on a GPU needs: a card that this process may use, and a torch built for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Environment, Measurement, Outcome, Workload
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_device
from autotune.space.settings import SETTINGS, Context
from tests.probe.probes import SETTINGS as BASE
from tests.probe.probes import make_order, measured

DEADLINE_S = 500.0
"""Of one training: the longest compile for minutes."""


CORE = (
    *("asleep", "card_is_read", "what_the_card_can_do", "estimate_lies", "every_precision", "tf32_is_read"),
    *("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "16_bits", "no_card", "limit_is_honoured"),
    *("reported_peak", "killed_probe", "refuses_to_fork"),
)
"""Parts of names of the tests in test_cuda.py that `make gpu-check` runs: some thirty trainings of 3 to 5 seconds each."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip them all with the reason where there is none; mark those that `make gpu-check` leaves to `make gpu-check-more`."""
    reason = _why_not()
    for item in items:
        if not item.get_closest_marker("gpu"):
            continue
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.path.name != "test_cuda.py" or not any(name in item.name for name in CORE):
            item.add_marker(pytest.mark.gpu_more)


def _why_not() -> str:
    from autotune.probe.device.nvml import visible_cards

    if not visible_cards():  # asked of NVML: asking torch would wake CUDA in this process
        return "needs a CUDA GPU: NVML shows none that this process may use"
    import torch

    return "" if torch.version.cuda else f"needs a torch built for CUDA: this is {torch.__version__}"


@pytest.fixture(scope="session")
def cuda() -> Environment:
    """What the first visible card can really do."""
    return read_device("cuda")


@pytest.fixture
def train_as_asked(host: ProbeHost, cuda: Environment, tmp_path: Path) -> Callable[..., Measurement]:
    """`train_as_asked(workload, configuration)`: a few steps on the card, whose settings must be as asked."""

    def train(workload: Workload, asked: Configuration) -> Measurement:
        order = make_order(tmp_path, cuda, asked=asked, workload=workload, deadline_s=DEADLINE_S)
        measurement = measured(host, order)
        assert measurement.outcome is Outcome.COMPLETED, f"{measurement.reason}\n{measurement.log_tail}"
        beyond = {name: value for name, value in asked.values.items() if BASE.get(name) != value}
        assert measurement.settings == measurement.settings | beyond
        return measurement

    return train


@pytest.fixture
def skip_without(cuda: Environment) -> Callable[..., None]:
    """`skip_without(workload, attention="flash_attention_2")`: skips with the reason where a value cannot be used here."""

    def skip(workload: Workload, **settings: Any) -> None:
        for name, value in settings.items():
            if reason := SETTINGS[name].unavailable(value, Context(cuda, workload)):
                pytest.skip(f"{name} {value}: {reason}")

    return skip
