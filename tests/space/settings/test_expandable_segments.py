"""Expandable segments."""

from autotune.core.configuration import Configuration
from autotune.space.settings import Context
from autotune.space.settings.expandable_segments import SETTING
from autotune.space.setup import process_environment
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed

ASKED = Configuration(2, 1, settings=(("expandable_segments", True), ("garbage_threshold", 0.8)))


def test_the_user_s_own_is_what_their_variable_says() -> None:
    assert SETTING.from_user(Context(gpu(), workload())) is False
    said = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:True"}
    assert SETTING.from_user(Context(gpu(variables=said), workload())) is True
    assert (
        SETTING.from_user(Context(gpu(variables={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}), workload()))
        is True
    )


def test_both_settings_of_the_allocator_stand_in_one_variable() -> None:
    together = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,garbage_collection_threshold:0.8"}
    assert process_environment(ASKED, gpu()) == together


def test_what_else_the_user_s_variable_says_is_kept() -> None:
    own = {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2],expandable_segments:False"}
    made = process_environment(ASKED, gpu(variables=own))["PYTORCH_CUDA_ALLOC_CONF"]
    assert made == "roundup_power2_divisions:[256:1,512:2],expandable_segments:True,garbage_collection_threshold:0.8"


def test_a_user_of_the_newer_name_keeps_it() -> None:
    own = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128"}
    made = process_environment(ASKED, gpu(variables=own))
    assert list(made) == ["PYTORCH_ALLOC_CONF"]
    assert made["PYTORCH_ALLOC_CONF"].startswith("max_split_size_mb:128,expandable_segments:True")


def test_it_is_read_back_from_the_allocator() -> None:
    assert SETTING.read_back(observed(allocator={"expandable_segments": True})) is True
    assert SETTING.read_back(observed()) is None


def test_it_is_a_gpu_s() -> None:
    assert "GPU" in (SETTING.unavailable(True, Context(cpu(), workload())) or "")
    assert SETTING.unavailable(False, Context(cpu(), workload())) is None
    assert SETTING.unavailable(True, Context(gpu(), workload())) is None
