"""Threads."""

from autotune.space.settings import Context
from autotune.space.settings.threads import SETTING
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed


def test_the_user_s_own_are_torch_s() -> None:
    assert SETTING.from_user(Context(cpu(threads=2), workload())) == 2


def test_they_are_a_variable_of_the_process() -> None:
    settings = SETTING.apply(4, cpu())
    assert settings.environment == {"OMP_NUM_THREADS": "4"}
    assert settings.training_arguments == {}


def test_they_are_read_back_from_torch() -> None:
    assert SETTING.read_back(observed(threads=3)) == 3


def test_more_than_the_cores_and_others_than_the_usual_on_a_card_are_unavailable() -> None:
    assert SETTING.unavailable(2, Context(cpu(cpu_count=2), workload())) is None
    assert "2 CPU cores" in (SETTING.unavailable(4, Context(cpu(cpu_count=2), workload())) or "")
    assert SETTING.unavailable(16, Context(gpu(threads=16), workload())) is None
    assert "GPU" in (SETTING.unavailable(4, Context(gpu(threads=16), workload())) or "")
