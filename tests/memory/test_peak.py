"""The most memory a configuration needs, as plain data and back."""

import json

from autotune.memory.peak import MemoryPeak, MemorySplit


def test_it_comes_back_as_it_was() -> None:
    peak = MemoryPeak(MemorySplit(1, 2, 3, 4, 5, 6), 20, "optimizer step")
    assert MemoryPeak.from_dict(json.loads(json.dumps(peak.to_dict()))) == peak
    assert (peak.allocated_bytes, peak.device_bytes) == (15, 26)
