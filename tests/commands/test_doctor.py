"""The facts about a device, for people."""

from autotune.commands.doctor import device_parts, doctor_lines
from tests.makers import cpu, gpu


def test_what_does_not_work_is_counted_and_on_request_listed_by_reason() -> None:
    needs = "You need to install `lomo_optim`."
    machine = cpu(optimizers={"adamw_torch": None, "lomo": needs, "adalomo": needs})
    short, whole = ("\n".join(doctor_lines(machine, everything)) for everything in (False, True))
    assert "5 of 8 cannot be used here: `autotune doctor --all` gives the reasons." in short
    assert "lomo" not in short
    assert "not lomo, adalomo: You need to install `lomo_optim`.\n" in whole
    assert "not fp16: trains in fp32 on a CPU\n" in whole
    assert "--all" not in whole


def test_a_card_s_facts_name_driver_context_slot_and_neighbours() -> None:
    told = "\n".join(doctor_lines(gpu(others=("python (7)",), topology="PCIe generation 5 x16", device_count=2)))
    assert "compute capability 9.0" in told
    assert "580.1" in told
    assert "500 MiB" in told
    assert "2 GPUs visible; PCIe generation 5 x16" in told
    assert "python (7)" in told
    assert "none that NVML shows" in "\n".join(doctor_lines(gpu()))
    assert "GPU  " not in told


def test_why_auto_means_the_cpu_of_a_machine_with_a_gpu_is_told() -> None:
    reason = "torch 2.13.0+cpu cannot use the GPU: Torch not compiled with CUDA enabled."
    assert dict(device_parts(cpu(unused_gpu=reason)))["GPU"] == f"not used: {reason}"


def test_the_caller_s_own_variables_are_told_without_places() -> None:
    own = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "LD_PRELOAD": "/opt/libs/one.so.2:/home/me/two.so"}
    told = dict(device_parts(cpu(variables=own)))
    assert told["variables"] == "PYTORCH_ALLOC_CONF=expandable_segments:True LD_PRELOAD=one.so.2:two.so"
    assert "variables" not in dict(device_parts(cpu()))
