"""Two cards that train together: a copy of the model on each, or a part."""

from collections.abc import Callable

import pytest

from autotune.core import Configuration, Environment, Measurement, Workload
from tests.probe.probes import SETTINGS

pytestmark = pytest.mark.gpu


@pytest.fixture
def train(
    train_as_asked: Callable[..., Measurement], workload_of: Callable[..., Workload], cuda: Environment
) -> Callable[[str], Measurement]:
    """`train("full_shard")`: a BERT on two cards, 8 samples a step of all."""
    if cuda.device_count < 2:
        pytest.skip(f"needs two GPUs: this process may use {cuda.device_count}")

    def train(fsdp: str) -> Measurement:
        asked = Configuration.exact(8, 2, {**SETTINGS, "data_parallel_size": 2, "fsdp": fsdp})
        return train_as_asked(workload_of("bert-base", sequence_length=64), asked)

    return train


@pytest.mark.parametrize("fsdp", ["none", "full_shard", "shard_grad_op"])
def test_two_cards_train_one_global_batch(train: Callable[[str], Measurement], fsdp: str) -> None:
    measurement = train(fsdp)
    assert (measurement.settings["data_parallel_size"], measurement.settings["fsdp"]) == (2, fsdp)
    assert measurement.data_parallel_size * measurement.steps[0].samples == 8


def test_what_is_sharded_takes_less_of_each_card(train: Callable[[str], Measurement]) -> None:
    copied, sharded = train("none").peak_allocated_bytes, train("full_shard").peak_allocated_bytes
    assert copied is not None
    assert sharded is not None
    assert sharded < 0.8 * copied
