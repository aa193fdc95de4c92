"""The data-parallel size."""

import math
from types import SimpleNamespace

import pytest

from autotune.core.configuration import Configuration
from autotune.space.settings import Change, Context
from autotune.space.settings.data_parallel_size import SETTING
from autotune.space.setup import process_environment, processes, training_arguments
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed


def test_whatever_the_user_s_arguments_say_one_process_is_started() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == 1
    assert SETTING.from_user(Context(gpu(device_count=8), workload(), {"ddp_backend": "gloo"})) == 1


@pytest.mark.parametrize("text", ["0", "-2", True, 1.5, "two"])
def test_it_is_a_whole_number_from_one(text: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        SETTING.read(text)


def test_ranks_on_a_cpu_speak_gloo_and_share_its_threads() -> None:
    settings = SETTING.apply(2, cpu(threads=8))
    assert settings.training_arguments == {"ddp_backend": "gloo"}
    assert settings.environment == {"OMP_NUM_THREADS": "4"}
    assert settings.processes == 2
    assert SETTING.apply(4, cpu(threads=2)).environment == {"OMP_NUM_THREADS": "1"}


def test_one_rank_is_a_training_as_it_always_was() -> None:
    settings = SETTING.apply(1, cpu())
    assert (settings.training_arguments, settings.environment) == ({}, {})


def test_ranks_on_gpus_take_the_backend_that_is_there() -> None:
    settings = SETTING.apply(4, gpu(threads=16))
    assert (settings.training_arguments, settings.environment) == ({}, {"OMP_NUM_THREADS": "4"})


def test_the_threads_that_a_space_names_are_each_rank_s_own_wherever_they_stand_in_it() -> None:
    for settings in ({"threads": 3, "data_parallel_size": 2}, {"data_parallel_size": 2, "threads": 3}):
        made = Configuration.exact(8, 4, settings)
        assert process_environment(made, cpu(threads=8)) == {"OMP_NUM_THREADS": "3"}
        assert processes(made, cpu(threads=8)) == 2


def test_the_answer_holds_what_each_rank_does() -> None:
    fields = training_arguments(Configuration.exact(8, 2, {"data_parallel_size": 2}), cpu(), {})
    assert fields["per_device_train_batch_size"] == 2
    assert fields["gradient_accumulation_steps"] == 2
    assert (fields["ddp_backend"], fields["use_cpu"]) == ("gloo", True)


def test_it_is_read_back_as_the_world_s_size() -> None:
    shown = observed()
    assert SETTING.read_back(shown) == 1
    shown.trainer.args = SimpleNamespace(world_size=4)
    assert SETTING.read_back(shown) == 4


def test_more_ranks_than_gpus_or_cores_are_ruled_out_with_the_reason() -> None:
    assert SETTING.unavailable(2, Context(gpu(device_count=2), workload())) is None
    assert (
        SETTING.unavailable(4, Context(gpu(device_count=2), workload()))
        == "more ranks than the 2 GPU(s) that are visible"
    )
    assert SETTING.unavailable(2, Context(cpu(cpu_count=2), workload())) is None
    assert "2 CPU core(s)" in str(SETTING.unavailable(4, Context(cpu(cpu_count=2), workload())))


def test_ranks_are_expected_to_keep_gradients_twice_and_on_a_cpu_to_share_its_arithmetic() -> None:
    facts = workload(gradient_bytes=100)
    assert SETTING.change(1, Context(cpu(), facts)) == Change()
    assert SETTING.change(2, Context(gpu(), facts)) == Change(peak_bytes=100.0)
    assert SETTING.change(2, Context(cpu(), facts)) == Change(math.log(2), math.log(2), 100.0)
