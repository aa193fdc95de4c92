"""A caller's own model, data and Trainer class for tests of trainings."""

from collections.abc import Iterator

import pytest

from autotune.probe.process.launcher import ProbeHost
from tests.probe import misbehaviours
from tests.probe.probes import bringing


@pytest.fixture(scope="module")
def own_host(host: ProbeHost) -> Iterator[ProbeHost]:
    """A host whose children train `misbehaviours`' model with its OwnTrainer."""
    with bringing(
        host,
        model_init=misbehaviours.model_init,
        train_dataset=misbehaviours.Samples(),
        trainer_class=misbehaviours.OwnTrainer,
    ) as host:
        yield host
