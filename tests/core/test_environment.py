"""Facts about the device and the software."""

import json

import pytest

from autotune.core.environment import Environment
from tests.makers import GIB, cpu, gpu


@pytest.mark.parametrize("environment", [cpu(), gpu(), gpu(others=("python (7)",))])
def test_an_environment_survives_json(environment: Environment) -> None:
    assert Environment.from_dict(json.loads(json.dumps(environment.to_dict()))) == environment


def test_the_fingerprint_changes_with_what_decides_speed() -> None:
    facts = {"device_name": "another card", "driver": "590.0", "threads": 1, "cpu_count": 3, "total_memory_bytes": GIB}
    for name, value in (*facts.items(), ("versions", {"torch": "2.12.0"})):
        assert gpu(**{name: value}).fingerprint() != gpu().fingerprint()


def test_the_fingerprint_does_not_change_with_what_passes() -> None:
    passing = {"free_memory_bytes": GIB, "others": ("python (7)",), "autotune_version": "0.0.1"}
    passing["total_memory_bytes"] = gpu().total_memory_bytes - (100 << 10)  # of a virtual machine, at its next boot
    assert gpu(**passing).fingerprint() == gpu().fingerprint()
    assert len(gpu().fingerprint()) == 12
