"""The facts about a device, for people."""

from autotune.commands.doctor import device_parts, doctor_lines
from autotune.core import Environment, read_json
from tests.conftest import RECORDED
from tests.makers import cpu, gpu


def test_a_cpu_s_facts_are_told_without_a_card_s() -> None:
    told = "\n".join(doctor_lines(cpu()))
    assert told.startswith("Ready: cpu (a plain processor), 2 cores, 6.00 GiB free.")
    assert "6.00 GiB free of 8.00 GiB" in told
    assert "2, 2 compute threads" in told
    assert "torch 2.13.0" in told
    assert "precisions  fp32, bf16\n" in told
    assert "driver" not in told
    words = " ".join(doctor_lines(gpu())).replace(",", "").split()
    assert {*gpu().precisions, *gpu().optimizers} <= {*words}


def test_what_does_not_work_is_counted_and_on_request_listed_by_reason() -> None:
    needs = "You need to install `lomo_optim`."
    machine = cpu(optimizers={"adamw_torch": None, "lomo": needs, "adalomo": needs})
    short, whole = ("\n".join(doctor_lines(machine, everything)) for everything in (False, True))
    assert "5 of 8 cannot be used here: `autotune doctor --all` gives the reasons." in short
    assert "lomo" not in short
    assert "not lomo, adalomo: You need to install `lomo_optim`.\n" in whole
    assert "not fp16: trains in fp32 on a CPU\n" in whole
    assert "--all" not in whole


def test_the_date_of_the_check_is_shown() -> None:
    assert "2026-11-26: `autotune doctor --fresh`" in doctor_lines(cpu(checked_on="2026-11-26"))[-1]
    assert "--fresh" not in " ".join(doctor_lines(cpu()))


def test_a_device_fits_a_screen() -> None:
    recorded = Environment.from_dict(read_json(RECORDED)["environment"])
    lines = doctor_lines(recorded)
    assert len(lines) < 24
    assert max(map(len, [*lines, *doctor_lines(recorded, everything=True)])) <= 80


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
