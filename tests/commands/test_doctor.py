"""The facts about a device, for people."""

from autotune.commands.doctor import device_parts, doctor_lines
from tests.makers import cpu, gpu


def test_a_cpu_s_facts_are_told_without_a_card_s() -> None:
    told = "\n".join(doctor_lines(cpu()))
    assert "cpu: a plain processor" in told
    assert "6.00 GiB free of 8.00 GiB" in told
    assert "2, 2 compute threads" in told
    assert "torch 2.13.0" in told
    assert "fp32                         works" in told
    assert "no: trains in fp32 on a CPU" in told
    assert "driver" not in told
    lines = doctor_lines(gpu())
    assert all(any(value in line.split() for line in lines) for value in (*gpu().precisions, *gpu().optimizers))


def test_a_card_s_facts_name_driver_context_slot_and_neighbours() -> None:
    told = "\n".join(doctor_lines(gpu(others=("python (7)",), topology="PCIe generation 5 x16", device_count=2)))
    assert "compute capability 9.0" in told
    assert "580.1" in told
    assert "500 MiB" in told
    assert "2 GPU(s) visible; PCIe generation 5 x16" in told
    assert "python (7)" in told
    assert "nobody else" in "\n".join(doctor_lines(gpu()))


def test_the_caller_s_own_variables_are_told_without_places() -> None:
    own = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "LD_PRELOAD": "/opt/libs/one.so.2:/home/me/two.so"}
    told = dict(device_parts(cpu(variables=own)))
    assert told["variables"] == "PYTORCH_ALLOC_CONF=expandable_segments:True LD_PRELOAD=one.so.2:two.so"
    assert "variables" not in dict(device_parts(cpu()))
