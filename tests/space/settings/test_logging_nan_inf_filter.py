"""The filter of the logged loss."""

from pathlib import Path

from transformers import TrainingArguments

from autotune.space.settings import Context
from autotune.space.settings.logging_nan_inf_filter import SETTING
from autotune.space.setup import training_arguments
from tests.makers import configuration, cpu, gpu, workload
from tests.space.settings.fakes import observed


def test_the_user_s_own_is_what_transformers_does_unless_they_say_otherwise(tmp_path: Path) -> None:
    usual = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none").logging_nan_inf_filter
    assert SETTING.from_user(Context(gpu(), workload())) is usual is True
    assert SETTING.from_user(Context(gpu(), workload(), {"logging_nan_inf_filter": False})) is False


def test_both_values_stand_in_the_answer() -> None:
    for value in (True, False):
        fields = training_arguments(configuration(8, logging_nan_inf_filter=value), gpu(), {})
        assert fields["logging_nan_inf_filter"] is value


def test_it_is_read_back_from_the_trainer_s_arguments() -> None:
    assert SETTING.read_back(observed(arguments={"logging_nan_inf_filter": False})) is False


def test_a_cpu_has_nothing_to_wait_for() -> None:
    assert SETTING.unavailable(True, Context(cpu(), workload())) is None
    assert "CPU" in (SETTING.unavailable(False, Context(cpu(), workload())) or "")
    assert SETTING.unavailable(False, Context(gpu(), workload())) is None


def test_it_changes_nothing_of_what_is_learned() -> None:
    assert SETTING.learns_alike(True, False)
