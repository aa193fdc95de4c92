"""One host with a caller's own model and data for all tests of processes."""

from collections.abc import Iterator

import pytest

from autotune.probe.process.launcher import ProbeHost
from autotune.workload.model.pickling import sent
from tests.probe import misbehaviours

OBJECTS = sent({"model_init": misbehaviours.model_init, "train_dataset": misbehaviours.Samples()})


@pytest.fixture(scope="session")
def bad_host() -> Iterator[ProbeHost]:
    """A host whose children do what their orders' BEHAVIOUR says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_VARIABLE_OF_THE_CALLER", "kept")
        patch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        patch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
        patch.setenv("NVIDIA_TF32_OVERRIDE", "1")
        patch.setenv("RANK", "3")
        patch.setenv("WORLD_SIZE", "8")
        host = ProbeHost(OBJECTS)
        host.start()
    with host:
        yield host
