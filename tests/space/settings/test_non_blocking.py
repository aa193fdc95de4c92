"""Non-blocking copies."""

from types import SimpleNamespace

from transformers import TrainingArguments

from autotune.space.settings import Context
from autotune.space.settings.non_blocking import SETTING
from autotune.space.setup import training_arguments
from tests.makers import configuration, cpu, gpu, workload
from tests.space.settings.fakes import observed


def test_the_user_s_own_stands_in_the_accelerator_s_config() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) is False
    assert SETTING.from_user(Context(cpu(), workload(), {"accelerator_config": {"non_blocking": True}})) is True
    assert SETTING.from_user(Context(cpu(), workload(), {"accelerator_config": "config.json"})) is False


def test_it_joins_what_the_user_s_own_config_says() -> None:
    asked = configuration(8, non_blocking=True)
    fields = training_arguments(asked, gpu(), {"accelerator_config": {"split_batches": False, "even_batches": False}})
    assert fields["accelerator_config"] == {"split_batches": False, "even_batches": False, "non_blocking": True}


def test_transformers_takes_it_as_it_is_written(tmp_path: object) -> None:
    fields = SETTING.apply(True, gpu()).training_arguments
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", **fields)
    assert arguments.accelerator_config.non_blocking is True


def test_it_is_read_back_from_the_accelerator() -> None:
    config = SimpleNamespace(non_blocking=True)
    assert SETTING.read_back(observed(accelerator=SimpleNamespace(dataloader_config=config))) is True
    assert SETTING.read_back(observed(accelerator=SimpleNamespace())) is None


def test_it_means_something_with_page_locked_memory_on_a_card_only() -> None:
    assert "CPU" in (SETTING.unavailable(True, Context(cpu(), workload())) or "")
    assert SETTING.unavailable(True, Context(gpu(), workload())) is None
    assert SETTING.active_if is not None
    name, means = SETTING.active_if
    assert (name, means(True), means(False)) == ("pin_memory", True, False)
