"""One host with a caller's own model, data and Trainer class for all tests of trainings."""

from collections.abc import Iterator

import pytest

from autotune.probe.process.launcher import ProbeHost
from autotune.workload.model.pickling import sent
from tests.probe import misbehaviours


@pytest.fixture(scope="session")
def own_host() -> Iterator[ProbeHost]:
    """A host whose children train `misbehaviours`' model with its OwnTrainer."""
    objects = {
        "model_init": misbehaviours.model_init,
        "train_dataset": misbehaviours.Samples(),
        "trainer_class": misbehaviours.OwnTrainer,
    }
    with ProbeHost(sent(objects)) as host:
        yield host
